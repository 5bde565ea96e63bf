"""The packing of ended trials: their many small files become one archive.

Inodes are scarce on shared file systems. The archive is written under a temporary name, synced,
compared with the files byte for byte, and linked to a name that was never used; only then are the
files removed. A process that is killed at any point of this has changed nothing for readers
(``store.fs.packed``), and the next turn goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from hpcdet.control.leader.leader import Fenced, Holder
from hpcdet.schedulers import opening
from hpcdet.store.decisions import lease
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, End, WorkerEnd
from hpcdet.store.fs import files, packed

QUIET_S = 600.0
"""Seconds since a trial's or worker's end before packing: late writers have ended by then."""

PER_TURN = 20
"""The most trials that are packed in one turn; packing is not urgent."""

LARGEST = 256 * 1024 * 1024
"""Bytes of a trial's files above which they stay as they are: a turn must not take long."""

WORKERS = 200
"""Workers that have left and are packed together, into one archive: each costs readers a look."""

SELDOM_S = 3600.0
"""Seconds between two looks at how many workers and terms there are."""

_CHUNK = 1024 * 1024

_SELDOM = ("packing", "seldom")

Outcome = Literal["later", "packed", "nothing to do"]
OUTCOMES: tuple[Outcome, ...] = ("later", "packed", "nothing to do")

Fence = Callable[[], None]


def _nobody() -> None:
    """Do nothing: there is no lease to keep meanwhile."""


def pack_ended(holder: Holder) -> None:
    """Pack trials that ended some time ago; occasionally pack workers and remove old terms.

    What cannot be packed, as on a full disk, stays as it is and is tried again later.

    Raises:
        Fenced: the term ended meanwhile.
    """
    now = holder.hands.clock()
    if now >= holder.written.get(_SELDOM, now):
        holder.written[_SELDOM] = now + SELDOM_S
        _tidy_seldom(holder)
    left = PER_TURN
    decided, waiting = holder.decided, holder.to_pack
    holder.packed -= decided.trials.open
    ended = decided.trials.plans.keys() - decided.trials.open
    for number in sorted(ended - holder.packed - waiting.keys()):
        waiting[number] = now
    for number, since in list(waiting.items()):
        if now - since < QUIET_S or not left:
            break  # those behind it ended later
        del waiting[number]
        if number in decided.trials.open:
            continue
        left -= 1
        if _tidy(holder, number):
            holder.packed.add(number)
        else:
            waiting[number] = now


def _tidy_seldom(holder: Holder) -> None:
    """Pack workers and remove old terms, which would pile up in a search of many weeks."""
    paths = holder.paths
    with _without_trouble(holder.actions, "workers"), contextlib.suppress(FileNotFoundError):
        if len(os.listdir(paths.root / "workers")) > WORKERS:
            pack_workers(paths, holder.fence, holder.stay, WORKERS)
    with _without_trouble(holder.actions, "terms"):
        holder.fence()
        if gone := lease.prune(paths, holder.lease.term):
            holder.actions.append(f"{gone} old terms removed")


def pack_all(holder: Holder) -> None:
    """Pack trials and workers that have left: the experiment is about to be closed.

    Trials that have just ended on other nodes stay as they are: some of their files may not have
    come into sight here, and an archive without them would have the last word.

    Raises:
        Fenced: the term ended meanwhile.
    """
    holder.packed -= holder.decided.trials.open
    for number in sorted(holder.decided.trials.plans.keys() - holder.packed):
        holder.stay()
        if _in_sight(holder, number) and _tidy(holder, number):
            holder.packed.add(number)
    with _without_trouble(holder.actions, "workers"):
        pack_workers(holder.paths, holder.fence, holder.stay)


def _in_sight(holder: Holder, number: int) -> bool:
    """True if all files of a trial that has ended are shown on this node."""
    site = holder.hands.site
    here = opening.of(site).inside.node_name(os.environ)
    since = _ago(site.lease_ttl_s)
    for attempt in holder.paths.trial(number).attempts():
        claim, end = Claim.read(attempt.claim), End.read(attempt.end)
        if claim is not None and claim.nodes != [here] and end is not None and end.at >= since:
            return False
    return True


def _ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def _tidy(holder: Holder, number: int) -> bool:
    """Pack one trial; False if it should be looked at again."""
    outcome: Outcome = "later"
    with _without_trouble(holder.actions, f"trial {number}"):
        outcome = pack(holder.paths.trial(number), holder.fence, holder.stay)
    if outcome == "packed":
        holder.actions.append(f"trial {number} packed")
    return outcome != "later"


@contextlib.contextmanager
def _without_trouble(actions: list[str], what: str) -> Iterator[None]:
    """Suppress errors: a search does not stop because packing fails."""
    try:
        yield
    except Fenced:
        raise
    except Exception as error:
        actions.append(f"{what}: not packed: {type(error).__name__}: {error}")


def pack(trial: TrialPaths, fence: Fence, stay: Fence = _nobody) -> Outcome:
    """Pack a trial's attempts and controls.

    Nothing is touched while an attempt is open. An unclaimed folder is left alone. Where the trial
    has a part on scratch, that part is packed there.

    Args:
        fence: asked right before each step that others see; it raises to stop there.
        stay: asked all the time, for each file; likewise.

    Raises:
        OSError: the file system refused something; the next call goes on from there.
    """
    attempts = [one for one in trial.attempts() if Claim.read(one.claim) is not None]
    if any(End.read(one.end) is None for one in attempts):
        return "later"
    outcomes = [_pack(trial.root, [*(one.root for one in attempts), trial.controls], fence, stay)]
    if trial.scratch is not None:
        there = [one.scratch for one in attempts if one.scratch is not None]
        outcomes.append(_pack(trial.scratch, there, fence, stay))
    return next(each for each in OUTCOMES if each in outcomes)


def pack_workers(
    paths: ExperimentPaths, fence: Fence, stay: Fence = _nobody, number: int = 0
) -> Outcome:
    """Pack the folders of workers that left some time ago, in the same way.

    Args:
        stay: called all the time, to keep the lease.
        number: of them, the first ones; "later" if there are fewer. 0: all.
    """
    since = _ago(QUIET_S)
    gone: list[Path] = []
    for worker in paths.workers():
        stay()
        if number and (len(gone) == number or packed.find(worker.claim) is not None):
            continue
        end = WorkerEnd.read(worker.end)
        if end is not None and end.at < since:
            gone.append(worker.root)
    return _pack(paths.root, gone, fence, stay) if len(gone) >= number else "later"


def _pack(home: Path, folders: Sequence[Path], fence: Fence, stay: Fence) -> Outcome:
    """Pack all files of folders below ``home`` into an archive in it."""
    above = {folder.parent for folder in folders} - {home}
    if not any(folder.is_dir() for folder in (*folders, *above)):
        return "nothing to do"
    _remove_leftovers(home)
    found = [path for folder in folders for path in _files(folder)]
    fresh = [path for path in found if packed.find(path) is None]
    if sum(path.stat().st_size for path in fresh) > LARGEST:
        return "nothing to do"
    if fresh and not _archive(home, fresh, fence, stay):
        return "later"
    fence()
    for path in found:
        stay()
        path.unlink(missing_ok=True)
    for folder in folders:
        _remove_empty(folder)
    for folder in above:
        with contextlib.suppress(OSError):  # others are left in it
            folder.rmdir()
    files.sync_folder(home)
    return "packed"


def _archive(home: Path, found: Sequence[Path], fence: Fence, stay: Fence) -> bool:
    """Write the next archive; False if a file changed meanwhile or another holder was first."""
    names = (packed.archive(home, number) for number in itertools.count(1))
    target = next(path for path in names if not path.exists())
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, files.FILE_MODE)
        with os.fdopen(fd, "w+b") as file:
            with zipfile.ZipFile(
                file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False
            ) as archive:
                for path in found:
                    stay()
                    archive.write(path, path.relative_to(home))
            file.flush()
            os.fsync(file.fileno())
        if not _agrees(temporary, home, found, stay):
            return False
        fence()
        return files.link_once(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _agrees(archive: Path, home: Path, found: Sequence[Path], stay: Fence) -> bool:
    """True if an archive, read from the disk, holds what the files hold now."""
    with zipfile.ZipFile(archive) as opened:
        for path in found:
            stay()
            name = path.relative_to(home).as_posix()
            with opened.open(name) as copy, files.open_file(path) as original:
                same = True
                while same and (chunk := original.read(_CHUNK)):
                    same = copy.read(_CHUNK) == chunk
                if not same or copy.read(1):
                    return False
    return True


def _files(folder: Path) -> Iterator[Path]:
    """Yield the plain files below a folder, in order, without leftover temporary files."""
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
    """Remove a folder and those below it, except any that holds more than temporary files."""
    for root, _, names in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            for name in filter(_is_temporary, names):
                Path(root, name).unlink()
            Path(root).rmdir()


def _remove_leftovers(home: Path) -> None:
    """Remove temporary archives that a killed holder left."""
    for name in os.listdir(home):
        if name.startswith(f".{packed.STEM}-") and _is_temporary(name):
            (home / name).unlink(missing_ok=True)
