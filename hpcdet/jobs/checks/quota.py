"""Room for an experiment's files: on the file system, and by the user's quota."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet.config.check.plan import plan
from hpcdet.read.experiment.gather import gather
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import UNREADABLE
from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.fs import mounts

_LIMIT_S = 20.0
_LEAST_FREE_BYTES = 1024**3
_NUMBER = re.compile(r"\[?(\d+)\]?\*?")


@dataclass(frozen=True)
class Free:
    """Free space in a place; ``by`` is ``file system`` or ``quota``, None without a known limit."""

    place: str
    by: str
    bytes: int | None
    inodes: int | None


@dataclass(frozen=True)
class Quota:
    """One file system of a quota command's output; bytes and files that may still be added."""

    name: str
    bytes: int | None
    files: int | None


def free(site: Site, place: Path) -> tuple[list[Free], list[str]]:
    """Return the free space for a folder, or the reason that it is unknown."""
    there = next(path for path in (place.resolve(), *place.resolve().parents) if path.exists())
    said = os.statvfs(there)
    inodes = said.f_favail if said.f_files else None  # some file systems have no limit
    found = [Free(str(there), "file system", said.f_bavail * said.f_frsize, inodes)]
    if not site.quota_command:
        return found, []
    argv = [os.path.expandvars(word) for word in site.quota_command]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return found, [f"the quota is not known: {error}"]
    # quota exits 1 where one is exceeded, and tells of all the same
    quota = chosen(parse(done.stdout), mounts.of(there))
    if quota is None:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing"]
        return found, [f"the quota of {there} is not known: {argv[0]} said: {last[0]}"]
    return [*found, Free(str(there), "quota", quota.bytes, quota.files)], []


def parse(text: str) -> list[Quota]:
    """The output of ``quota -w``, ``lfs quota -q`` and whatever prints the same.

    Of each file system: its name, KiB used, soft and hard limit, a word on grace that may be
    missing, then files likewise. A name may stand alone on a line before its numbers; ``*``
    marks what is exceeded, 0 is no limit. Other lines are passed over.
    """
    found: list[Quota] = []
    name = ""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 1 and not _NUMBER.fullmatch(words[0]):
            name = words[0]
            continue
        if words and not _NUMBER.fullmatch(words[0]):
            name, words = words[0], words[1:]
        blocks, rest = _take(words)
        files, _ = _take(rest)
        if name and blocks:
            left = _left(blocks)
            found.append(Quota(name, None if left is None else left * 1024, _left(files)))
        name = ""
    return found


def _take(words: Sequence[str]) -> tuple[list[int], Sequence[str]]:
    """Return the first three numbers of a line, and the rest after its grace period."""
    matches = [_NUMBER.fullmatch(word) for word in words[:3]]
    numbers = [int(match[1]) for match in matches if match]
    if len(numbers) < 3:
        return [], []
    rest = words[3:]
    return numbers, rest[1:] if rest and not _NUMBER.fullmatch(rest[0]) else rest


def _left(numbers: Sequence[int]) -> int | None:
    """Return the space left; a soft limit counts, as it becomes hard within days."""
    limits = [limit for limit in numbers[1:] if limit]
    return max(0, min(limits) - numbers[0]) if limits else None


def chosen(quotas: Sequence[Quota], mount: mounts.Mount | None) -> Quota | None:
    """The quota of a file system: that of its name, or the only one there is."""
    names = {mount.device, str(mount.at)} if mount else set()
    named = [quota for quota in quotas if quota.name in names]
    return named[0] if named else quotas[0] if len(quotas) == 1 else None


def former(root: Path, name: str) -> int | None:
    """The size of a checkpoint in the newest experiment of that name; None if there is none."""
    for paths in reversed(find.experiments(root)):
        if paths.id.rpartition("-")[0] != name:
            continue
        with contextlib.suppress(*UNREADABLE):
            for trial in gather(paths).trials:
                for attempt in trial.attempts:
                    if lines := list(attempt.of_kind("checkpoint")):
                        return max(int(line["bytes"]) for line in lines)
    return None


def warnings(
    experiment: Resolved, site: Site, place: Path, checkpoint_bytes: int | None
) -> list[str]:
    """Return what does not fit, one sentence each."""
    left, unknown = free(site, place)
    need = plan(experiment, checkpoint_bytes)["storage"]
    return [*unknown, *shortages(left, need)]


def shortages(left: Sequence[Free], need: dict[str, Any]) -> list[str]:
    """Return what of a plan's ``storage`` does not fit, one sentence each."""
    return [*_too_small(left, need), *_paused(need)]


def _too_small(left: Sequence[Free], need: dict[str, Any]) -> Iterator[str]:
    for one in left:
        where = f"{one.place} has" if one.by == "file system" else f"by quota, {one.place} has"
        if one.inodes is not None and one.inodes < need["inodes"]:
            yield f"{where} {one.inodes} inodes left; the run may need {need['inodes']}"
        if one.bytes is None:
            continue
        if need["bytes"] is not None and one.bytes < need["bytes"]:
            yield f"{where} {_gb(one.bytes)} left; checkpoints may need {_gb(need['bytes'])}"
        elif one.bytes < _LEAST_FREE_BYTES:
            yield f"{where} {one.bytes // 1024**2} MiB left; checkpoints may not fit"


def _paused(need: dict[str, Any]) -> Iterator[str]:
    wanted, most = need["paused_bytes"], need["max_paused_bytes"]
    if wanted is not None and most is not None and wanted > most:
        yield (
            f"trials that are paused may hold {_gb(wanted)} of checkpoints; "
            f"checkpoint_storage.max_paused_bytes is {_gb(most)}"
        )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
