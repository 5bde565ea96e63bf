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
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

# linux/filter.h: one instruction, BPF_RET | BPF_K with 0: keep no byte of any packet
_NOTHING = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
_PROGRAM = struct.pack("HL", 1, ctypes.addressof(_NOTHING))
_ATTACH, _DETACH = 26, 27
_INTERNET = (socket.AF_INET, socket.AF_INET6)

T = TypeVar("T")
_Listener = tuple[int, int]
_lock = threading.Lock()
_ours: set[_Listener] = set()
"""Descriptor and inode of each."""
_connecting = 0
"""Groups that are about to connect, in several threads."""
_limits = (0, 0)
"""Of descriptors, as they were before the first of these groups."""


def behind(make: Callable[[], T]) -> T:
    """Make something that listens: its ports are open while some group connects, else shut."""
    with _lock:
        before = set(_listening())
        made = make()
        new = set(_listening()) - before
        _ours.intersection_update(before)  # those that are closed are nobody's any more
        _ours.update(new)
        if not _connecting:
            _filter(new, _ATTACH)
    return made


@contextlib.contextmanager
def open_until_connected() -> Iterator[None]:
    """Inside, the ports are open, and those that are made there, too.

    Meanwhile the process may have as many descriptors as the system allows it. Several threads
    may be inside; the last one shuts the ports.
    """
    global _connecting, _limits
    with _lock:
        if not _connecting:
            _filter(_ours, _DETACH)
            _limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (_limits[1], _limits[1]))
        _connecting += 1
    try:
        yield
    finally:
        with _lock:
            _connecting -= 1
            if not _connecting:
                resource.setrlimit(resource.RLIMIT_NOFILE, _limits)
                _filter(_ours, _ATTACH)


def _listening() -> Iterator[_Listener]:
    """The sockets of this process that wait for TCP connections."""
    try:
        names = os.listdir("/proc/self/fd")
    except FileNotFoundError:  # a container without it: the ports stay open
        return
    for name in names:
        with contextlib.suppress(OSError), _borrowed(int(name)) as found:
            waits = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if found.family in _INTERNET and found.type == socket.SOCK_STREAM and waits:
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
