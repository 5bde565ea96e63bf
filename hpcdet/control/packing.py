"""Packing what trials that have ended leave: many small files become one archive.

Inodes are what shared file systems are short of. The archive is written under a temporary
name, synced, compared with the files byte for byte, and linked to a name that nobody has had;
only then do the files go. Whoever is cut off anywhere in this has changed nothing for readers
(``store.packed``), and the next turn goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from hpcdet.control.holder import Fenced, Holder
from hpcdet.store import files, packed
from hpcdet.store.layout import TrialPaths
from hpcdet.store.records import Claim, End

QUIET_S = 600.0
"""How long a trial has to have ended before: whoever still wrote to it then has come to an end."""

PER_TURN = 20
"""Trials that are packed in one turn at most; nobody waits for it."""

LARGEST = 256 * 1024 * 1024
"""Bytes of a trial's files above which they stay as they are: a turn must not take long."""

_CHUNK = 1024 * 1024


def pack_ended(holder: Holder, *, closing: bool = False) -> None:
    """Pack trials that have ended some time ago; ``closing``: all of them, now.

    What cannot be packed, on a full disk for one, stays as it is and is tried again later.

    Raises:
        Fenced: the term ended meanwhile.
    """
    now = holder.hands.clock()
    left = PER_TURN
    for plan in holder.decided.plans.values():
        # since when the trial is known to have ended; "packed" once nothing is left to do
        key = ("ended", plan.number)
        if not (plan.ended or closing):
            holder.written.pop(key, None)
            continue
        since = holder.written.setdefault(key, now)
        if since == "packed" or (now - since < QUIET_S and not closing):
            continue
        if not left and not closing:
            return
        left -= 1
        holder.written[key] = now
        try:
            outcome = pack(holder.paths.trial(plan.number), holder.fence)
            if outcome != "later":
                holder.written[key] = "packed"
            if outcome == "packed":
                holder.actions.append(f"trial {plan.number} packed")
        except Fenced:
            raise
        except Exception as error:  # this is tidying: no search stops for it
            why = f"{type(error).__name__}: {error}"
            holder.actions.append(f"trial {plan.number} stays unpacked: {why}")


def pack(
    trial: TrialPaths, fence: Callable[[], None]
) -> Literal["packed", "nothing to do", "later"]:
    """Pack a trial's attempts and controls.

    Nothing is touched while an attempt is open. A folder that nobody claimed is left alone.

    Args:
        fence: asked right before each step that others see; it raises to stop there.

    Raises:
        OSError: the file system refused something; the next call goes on from there.
    """
    _remove_leftovers(trial)
    attempts = [one for one in trial.attempts() if Claim.read(one.claim) is not None]
    if any(End.read(one.end) is None for one in attempts):
        return "later"
    found = [path for one in attempts for path in _files(one.root)] + list(_files(trial.controls))
    fresh = [path for path in found if packed.find(path) is None]
    if sum(path.stat().st_size for path in fresh) > LARGEST:
        return "nothing to do"
    if fresh and not _archive(trial, fresh, fence):
        return "later"
    above = trial.root / "attempts"
    if not (above.is_dir() or trial.controls.is_dir()):
        return "nothing to do"
    fence()
    for path in found:
        path.unlink(missing_ok=True)
    for folder in (*(one.root for one in attempts), trial.controls):
        _remove_empty(folder)
    with contextlib.suppress(OSError):
        above.rmdir()
    files.sync_folder(trial.root)
    return "packed"


def _archive(trial: TrialPaths, found: Sequence[Path], fence: Callable[[], None]) -> bool:
    """Write the next archive; False if a file changed meanwhile, or another holder was first."""
    names = (packed.archive(trial.root, number) for number in itertools.count(1))
    target = next(path for path in names if not path.exists())
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, files.FILE_MODE)
        with os.fdopen(fd, "w+b") as file:
            with zipfile.ZipFile(
                file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False
            ) as archive:
                for path in found:
                    archive.write(path, path.relative_to(trial.root))
            file.flush()
            os.fsync(file.fileno())
        if not _agrees(temporary, trial, found):
            return False
        fence()
        return files.link_once(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _agrees(archive: Path, trial: TrialPaths, found: Sequence[Path]) -> bool:
    """Whether an archive, read from the disk, holds what the files hold now."""
    with zipfile.ZipFile(archive) as opened:
        for path in found:
            name = path.relative_to(trial.root).as_posix()
            with opened.open(name) as copy, path.open("rb") as original:
                same = True
                while same and (chunk := original.read(_CHUNK)):
                    same = copy.read(_CHUNK) == chunk
                if not same or copy.read(1):
                    return False
    return True


def _files(folder: Path) -> Iterator[Path]:
    """The plain files below a folder, in order; temporary ones of writers that died are none."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        elif entry.is_file(follow_symlinks=False) and not _is_temporary(entry.name):
            yield Path(entry.path)


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def _remove_empty(folder: Path) -> None:
    """Remove a folder with the folders in it, but none that holds a file that somebody wrote."""
    for root, _, names in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            for name in filter(_is_temporary, names):
                Path(root, name).unlink()
            Path(root).rmdir()


def _remove_leftovers(trial: TrialPaths) -> None:
    """What a holder that was cut off did not come to give a name."""
    for name in os.listdir(trial.root) if trial.root.is_dir() else ():
        if name.startswith(f".{packed.STEM}-") and _is_temporary(name):
            (trial.root / name).unlink(missing_ok=True)
