"""An experiment's folder held open, so that the folder that was checked is the one used.

Its name may refer to another folder at any time, if another user may rename it. So it is opened,
owner, mode and identity are checked on the descriptor, and all files below are reached through
that: ``/proc/PID/fd/N`` leads to this very folder, from this process and from those that it
starts, whatever the name refers to by then.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from hpcdet.errors import IntegrityError
from hpcdet.store.folder import trust
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

VISIBLE_S = 60.0
"""How long a network file system may hide from one node what another has just written."""
_LOOK_S = 0.2


@dataclass(frozen=True, eq=False)
class Held:
    """A folder that is open as long as this object lives.

    Attributes:
        named: its name when it was opened: for people and for other machines.
        root: its path by the descriptor.
    """

    named: Path
    fd: int
    root: Path

    def __post_init__(self) -> None:
        weakref.finalize(self, os.close, self.fd)

    @property
    def paths(self) -> ExperimentPaths:
        """The paths inside this very folder."""
        return ExperimentPaths(self.root, self.named.name)


def hold(folder: Path) -> Held:
    """Open an experiment's folder and check that no other user may change it.

    Raises:
        ConfigError: another user may change it.
        OSError: it is not there, or cannot be opened.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    root = Path(f"/proc/{os.getpid()}/fd/{fd}")
    if _leads_to(fd, root):
        held = Held(root.readlink(), fd, root)
        if held.named.name.endswith(" (deleted)") and not _leads_to(fd, held.named):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(held.named))
    else:  # in a container without /proc, or with that of another one, there is the name only
        named = folder.resolve()
        held = Held(named, fd, named)
    trust.refuse_open_folder(held.named, held.fd, "experiment")
    return held


def _leads_to(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def identity(paths: ExperimentPaths, attempt: AttemptPaths) -> str:
    """Return the identity of an attempt, unique among all experiments, forks included.

    Returns:
        64 hex digits. They depend on what is written once: config, provenance and the claim.

    Raises:
        OSError: one of the files cannot be read. One that is not there counts as empty.
    """
    whole = hashlib.sha256()
    for path in (paths.config, paths.provenance, attempt.claim):
        contents = b""
        with contextlib.suppress(FileNotFoundError):
            contents = files.read(path)
        whole.update(hashlib.sha256(contents).digest())
    return whole.hexdigest()


def refuse_another(held: Held, attempt: AttemptPaths, expected: str) -> None:
    """Refuse a folder that has replaced the one in which a worker claimed the attempt.

    Raises:
        IntegrityError: it is another folder.
    """
    limit = time.monotonic() + VISIBLE_S
    while identity(held.paths, attempt) != expected:
        if attempt.claim.exists() or time.monotonic() > limit:
            raise IntegrityError(
                "this is not the experiment that was to run: another folder has taken its place",
                where=str(held.named),
                hint=f"who may rename in {held.named.parent}? (chmod +t keeps others from it)",
            )
        time.sleep(_LOOK_S)
