"""Shuts gloo's ports while no group is about to connect.

gloo listens as long as a group lives, takes whatever connects, and ends the process once there are
no descriptors left for that. A filter on its listening sockets (``SO_ATTACH_FILTER``, socket(7))
lets the kernel drop what comes to them; connections that stand are not touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import socket
import stat
import struct
from collections.abc import Iterable, Iterator

# linux/filter.h: one instruction, BPF_RET | BPF_K with 0: keep no byte of any packet
_NOTHING = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
_PROGRAM = struct.pack("HL", 1, ctypes.addressof(_NOTHING))
_ATTACH, _DETACH = 26, 27

_Listener = tuple[int, int]
_shut: set[_Listener] = set()
"""Descriptor and inode of each."""


@contextlib.contextmanager
def open_until_connected() -> Iterator[None]:
    """Inside, gloo's ports are open; those that were made there are shut afterwards, too.

    Meanwhile the process may have as many descriptors as the system allows it.
    """
    global _shut
    before = set(_listening())
    _filter(_shut & before, _DETACH)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        now = set(_listening())
        _shut = (_shut & now) | (now - before)
        _filter(_shut, _ATTACH)


def _listening() -> Iterator[_Listener]:
    """The sockets of this process that wait for TCP connections."""
    try:
        names = os.listdir("/proc/self/fd")
    except FileNotFoundError:  # a container without it: the ports stay open
        return
    for name in names:
        with contextlib.suppress(OSError), _borrowed(int(name)) as found:
            kind = (found.family, found.type)
            waits = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if kind == (socket.AF_INET, socket.SOCK_STREAM) and waits:
                yield int(name), os.fstat(int(name)).st_ino


def _filter(listeners: Iterable[_Listener], option: int) -> None:
    for descriptor, inode in listeners:
        with contextlib.suppress(OSError), _borrowed(descriptor) as listener:
            if os.fstat(descriptor).st_ino == inode:
                listener.setsockopt(socket.SOL_SOCKET, option, _PROGRAM)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket by its descriptor, which stays open, and blocks or not as it did.

    Raises:
        OSError: that is none.
    """
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise OSError(errno.ENOTSOCK, "no socket")
    blocks = os.get_blocking(descriptor)
    found = socket.socket(fileno=descriptor)  # has setdefaulttimeout's way, which is shared
    try:
        os.set_blocking(descriptor, blocks)
        yield found
    finally:
        found.detach()
