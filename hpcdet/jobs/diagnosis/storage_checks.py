"""Checks of a folder's file system: what hpcdet rests on, room, inodes, quota and purge."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hpcdet.jobs.checks import quota
from hpcdet.jobs.diagnosis.finding import SiteFinding, skipped
from hpcdet.site import Site, folders
from hpcdet.store.fs import files

SKEW_S = 5.0
"""Clocks that differ by more are warned of."""
_LEAST_INODES = 10_000
_LEAST_BYTES = 10**9


def findings(root: Path) -> Iterator[SiteFinding]:
    """Check the file system below a folder of experiments; what is made is removed again."""
    place = next(path for path in (root, *root.parents) if path.exists())
    made = Path(tempfile.mkdtemp(prefix=".hpcdet-doctor-", dir=place))
    try:
        yield _creation(made, place)
        yield _rename(made, place)
        yield _clock(made)
    finally:
        shutil.rmtree(made)
    free = os.statvfs(place)
    left = free.f_bavail * free.f_frsize
    what = f"{place}: {left / 1e9:.1f} GB free"
    hint = "" if left >= _LEAST_BYTES else "remove old experiments, or HPCDET_ROOT elsewhere"
    yield SiteFinding("warning" if hint else "ok", what, hint, "room")
    yield _inodes(place, free)


def _creation(made: Path, place: Path) -> SiteFinding:
    once, twice = (files.write_once(made / "once", text) for text in (b"1", b"2"))
    if once and not twice and (made / "once").read_bytes() == b"1":
        return SiteFinding("ok", f"{place}: a file is created once", check="creation")
    what = f"{place}: exclusive creation by link does not work"
    return SiteFinding("error", what, "HPCDET_ROOT on a file system with hard links", "creation")


def _rename(made: Path, place: Path) -> SiteFinding:
    files.replace(made / "whole", b"2")
    files.replace(made / "whole", b"3")
    if (made / "whole").read_bytes() == b"3":
        return SiteFinding("ok", f"{place}: a file is replaced as a whole", check="rename")
    what = f"{place}: replacing a file by rename does not work"
    return SiteFinding("error", what, "HPCDET_ROOT on a POSIX file system", "rename")


def _clock(made: Path) -> SiteFinding:
    """Compare this host's clock with the one that gives files their times."""
    probe = made / "now"
    files.replace(probe, b"")
    skew = probe.stat().st_mtime - time.time()
    if abs(skew) > SKEW_S:
        what = f"the file server's clock is {skew:+.0f} s off"
        hint = "NTP on this host and on the file server; until then ages are off by as much"
        return SiteFinding("warning", what, hint, "clock")
    return SiteFinding("ok", "the clock agrees with the file server's", check="clock")


def _inodes(place: Path, free: os.statvfs_result) -> SiteFinding:
    if not free.f_files:  # Btrfs, some Lustre: as many as there is room for
        return skipped("inodes", f"the file system of {place} names no number of inodes")
    what = f"{place}: {free.f_favail} inodes are left"
    if free.f_favail < _LEAST_INODES:
        hint = "hpcdet plan says how many a search needs; hpcdet archive packs old ones"
        return SiteFinding("warning", what, hint, "inodes")
    return SiteFinding("ok", what, check="inodes")


def of_user(site: Site, root: Path) -> Iterator[SiteFinding]:
    """Check what the user may still write below a folder, and for how long files stay."""
    if not site.quota_command:
        hint = "quota_command in the site file: what prints it, as [quota, -w]"
        yield skipped("quota", "the site file names no command that prints it", hint)
    else:
        found, unknown = quota.free(site, root)
        for why in unknown:
            yield skipped("quota", why, "quota_command in the site file")
        for one in found:
            if one.by == "quota":
                yield _quota(one)
    yield _purge(site, root)


def _quota(free: quota.Free) -> SiteFinding:
    room = "no limit of bytes" if free.bytes is None else f"{free.bytes / 1e9:.1f} GB"
    inodes = "no limit of files" if free.inodes is None else f"{free.inodes} files"
    few = free.bytes is not None and free.bytes < _LEAST_BYTES
    few = few or (free.inodes is not None and free.inodes < _LEAST_INODES)
    hint = "remove old experiments: hpcdet rm; or HPCDET_ROOT elsewhere" if few else ""
    what = f"{free.place}: by quota, {room} and {inodes} are left"
    return SiteFinding("warning" if few else "ok", what, hint, "quota")


def _purge(site: Site, root: Path) -> SiteFinding:
    days, scratch = site.paths.purge_days, folders.folder(site.paths.scratch)
    if days is None or scratch is None:
        hint = "paths.scratch and paths.purge_days in the site file"
        return skipped("purge", "the site file names no age at which files are purged", hint)
    if not root.resolve().is_relative_to(scratch.resolve()):
        return SiteFinding("ok", f"{root} is not on the purged {scratch}", check="purge")
    hint = "paths.project in the site file, or HPCDET_ROOT on a file system that is not purged"
    return SiteFinding("warning", f"{root}: files are purged after {days} days", hint, "purge")
