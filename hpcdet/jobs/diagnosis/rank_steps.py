"""Checks between two nodes: ``hpcdet.rank_check`` in two ranks, by the site's launcher."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcdet.jobs.diagnosis.finding import Level, SiteFinding, skipped
from hpcdet.jobs.diagnosis.storage_checks import SKEW_S
from hpcdet.jobs.script.environment import for_step
from hpcdet.launchers import opening as launchers
from hpcdet.launchers.common import Launch, StepRequest
from hpcdet.schedulers import opening as schedulers
from hpcdet.site import Site
from hpcdet.store.fs import files

CHECKS = ("visibility", "clock", "creation", "rename", "collectives", "mpi")
LIMIT_S = 150.0
PART = 0.25
"""Of the job's time, and at most ``LIMIT_S``, for each of two steps: both hang where nodes do not
reach each other, and the job has to answer."""
_KILL_S = 10.0
_LATE_S = 1.0
_LAUNCHER = re.compile(r"\w+: ")
"""What a launcher says of itself: ``srun: error: …``."""


def findings(
    site: Site, partition: str | None, place: Path, walltime_s: int
) -> Iterator[SiteFinding]:
    """Start a rank on each of two nodes of this allocation, by the site's launcher.

    Args:
        place: a folder that all nodes see, where the ranks leave what they find.
        walltime_s: of the job.
    """
    limit_s = min(LIMIT_S, PART * walltime_s)
    inside = schedulers.of(site).inside
    nodes = inside.allocation(os.environ, None).nodes
    if len(nodes) < 2:
        for check in CHECKS:
            yield skipped(check, "the job has one node", where="nodes")
        return
    view = site.view(partition)
    launcher = launchers.launcher(launchers.kind_of(site, view))
    said = _run(_step(site, partition, place, "auto"), place, "auto", limit_s)
    first, second = (_left(place, "auto", rank) for rank in (0, 1))
    yield from _of_files(site, first, second, said)
    yield _of_collectives(first, second, said)
    objection, hint = launcher.objection_to_mpi(view.launcher.args)
    if importlib.util.find_spec("mpi4py") is None:
        objection, hint = "mpi4py is not installed", "python -m pip install 'hpcdet[mpi]'"
    if objection:
        yield skipped("mpi", objection, hint, "nodes")
        return
    said = _run(_step(site, partition, place, "mpi"), place, "mpi", limit_s)
    yield _of_mpi(_left(place, "mpi", 0), _left(place, "mpi", 1), said)


def _step(site: Site, partition: str | None, place: Path, backend: str) -> Launch:
    view = site.view(partition)
    launcher = launchers.launcher(launchers.kind_of(site, view))
    inside = schedulers.of(site).inside
    environ = for_step(os.environ, site)
    allocation = inside.allocation(os.environ, None)
    return launcher.step(
        StepRequest(
            rank=(sys.executable, "-Pm", "hpcdet.rank_check", str(place), backend),
            environ=environ,
            nodes=2,
            ranks=2,
            ranks_per_node=1,
            cpus_per_rank=1,
            memory_per_node=None,
            name=f"doctor-{backend}",
            lanes=1,
            hosts=(),
            gpus=inside.granted_gpus(environ) if launcher.divides else 0,
            mpi=backend == "mpi",
            args=tuple(view.launcher.args),
            command=view.launcher.command or "",
            daemons=inside.daemons(sys.executable, allocation),
            python=sys.executable,
            folder=place,
        )
    )


def _run(launch: Launch, place: Path, backend: str, limit_s: float) -> str:
    """Run a step to its end; returns why it failed, "" if it did not."""
    log, limit = place / f"{backend}.log", time.monotonic() + limit_s
    with files.append_log(log) as output:
        running = [
            subprocess.Popen(
                launch.argv,
                env={**launch.environment, **extra},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for extra in launch.processes
        ]
        try:
            codes = [one.wait(max(0.1, limit - time.monotonic())) for one in running]
        except subprocess.TimeoutExpired:
            for one in running:
                one.send_signal(launch.end_signal)
            for one in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.wait(_KILL_S)
                one.kill()
                one.wait()
            return f"no end in {limit_s:.0f} s"
    if not any(codes):
        return ""
    return _reason(log.read_text(errors="replace")) or f"exit code {max(codes, key=abs)}"


def _reason(log: str) -> str:
    """The sentence of a log that says why: a traceback's last line, else the first prose."""
    lines = [line.strip() for line in log.splitlines()]
    if "Traceback (most recent call last):" in lines:
        return next(filter(None, reversed(lines)))
    prose = " ".join(line for line in lines if line[:1].isalpha() and not _LAUNCHER.match(line))
    return prose.partition(". ")[0] or next(filter(None, reversed(lines)), "")


def _left(place: Path, backend: str, rank: int) -> dict[str, Any]:
    found = files.read_json(place / f"{backend}-{rank}.json")
    return found if isinstance(found, dict) else {}


def _of_files(
    site: Site, first: dict[str, Any], second: dict[str, Any], said: str
) -> Iterator[SiteFinding]:
    why = first.get("error") or second.get("error") or said or "the ranks left no word"
    nodes = f"{first.get('node', '?')} and {second.get('node', '?')}"
    if "visible_s" not in first:
        hint = "do both nodes mount the folder of experiments? See launcher in the site file"
        yield _between("error", f"{nodes}: {why}", "visibility", hint)
        for check in ("clock", "creation", "rename"):
            yield skipped(check, "the ranks did not find each other", where="nodes")
        return
    late = first["visible_s"]
    what = f"{nodes} see each other's files after {late:.3f} s at most"
    if late > site.lease_ttl_s / 2:
        hint = f"lease_ttl_s: {int(4 * late)} in the site file, or mount options (actimeo, noac)"
        yield _between("error", what, "visibility", hint)
    elif late > _LATE_S:
        hint = "decisions and starts come so much later; mount options (actimeo) shorten it"
        yield _between("warning", what, "visibility", hint)
    else:
        yield _between("ok", what, "visibility")
    skew, give = first["clock_s"], first["clock_error_s"]
    what = f"the clocks of {nodes} are {abs(skew):.3f} s apart, give or take {give:.3f} s"
    if abs(skew) > SKEW_S + give:
        yield _between("warning", what, "clock", "NTP on both; until then ages are off by as much")
    elif give > SKEW_S:
        yield skipped(
            "clock", f"files are seen too late for it, give or take {give:.0f} s", where="nodes"
        )
    else:
        yield _between("ok", what, "clock")
    yield _of_creation(first, second, why)
    if "torn" not in second:
        yield skipped("rename", why, where="nodes")
    elif second["torn"] or not second["last"]:
        what = f"{second['torn']} of many reads met no whole file while another node replaced it"
        if not second["torn"]:
            what = "one node goes on reading what another has replaced a minute ago"
        yield _between("error", what, "rename", "HPCDET_ROOT on a POSIX file system")
    else:
        yield _between("ok", "a file that one node replaces is whole for the other", "rename")


def _of_creation(first: dict[str, Any], second: dict[str, Any], why: str) -> SiteFinding:
    if "created" not in first or "created" not in second:
        return skipped("creation", why, where="nodes")
    own, theirs = set(first["created"]), set(second["created"])
    both, count = own & theirs, len(own | theirs)
    if both:
        what = f"{len(both)} of {count} files were created by both nodes"
        hint = "HPCDET_ROOT on a file system where link is atomic between nodes"
        return _between("error", what, "creation", hint)
    what = f"{count} files that both nodes create were each created once"
    return _between("ok", f"{what} ({len(own)} and {len(theirs)})", "creation")


def _of_collectives(first: dict[str, Any], second: dict[str, Any], said: str) -> SiteFinding:
    if "bytes_per_s" in first and first["sum"] and second.get("sum"):
        speed = first["bytes_per_s"] / 1e6
        what = f"{first['by']} sums over both nodes, {speed:.0f} MB/s of gradients"
        return _between("ok", what, "collectives")
    why = first.get("error") or second.get("error") or said or "the sums are wrong"
    hint = (
        "can the nodes open connections to each other? env: {NCCL_SOCKET_IFNAME, "
        "GLOO_SOCKET_IFNAME} in the site file name the interfaces"
    )
    return _between("error", f"collectives: {why}", "collectives", hint)


def _of_mpi(first: dict[str, Any], second: dict[str, Any], said: str) -> SiteFinding:
    if first.get("sum") and second.get("sum"):
        return _between("ok", "MPI sums over both nodes", "mpi")
    why = first.get("error") or second.get("error") or said or "the sums are wrong"
    hint = (
        "launcher in the site file: the kind and args that start MPI here; only "
        "distributed.backend: mpi needs it"
    )
    return _between("warning", f"MPI: {why}", "mpi", hint)


def _between(level: Level, what: str, check: str, hint: str = "") -> SiteFinding:
    return SiteFinding(level, what, hint, check, "nodes")
