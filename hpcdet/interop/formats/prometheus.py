"""Prometheus' text format, for the textfile collector of its node exporter.

The labels have few values: users, accounts, partitions, states, reasons. Experiments, trials and
hyperparameters are none, since each would be a new time series in the site's database.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpcdet.interop.formats.exported import ExperimentExport, epoch
from hpcdet.read.usage import usage_table
from hpcdet.store.fs import files

HOUR_S = 3600.0
_BY = ("user", "account", "partition")
READABLE = 0o644
"""The collector is another user."""

Labels = tuple[tuple[str, str], ...]

_HELP = {
    "hpcdet_experiments": ("gauge", "Experiments by state."),
    "hpcdet_trials": ("gauge", "Trials by state."),
    "hpcdet_attempts_total": ("counter", "Ended attempts of trials by reason."),
    "hpcdet_slot_seconds_total": ("counter", "Slot seconds by kind, as of hpcdet usage."),
    "hpcdet_allocated_slot_seconds_total": ("counter", "Slot seconds of all kinds but queued."),
    "hpcdet_checkpoint_bytes": ("gauge", "Size of the checkpoints that are there."),
    "hpcdet_newest_timestamp_seconds": ("gauge", "Time at which an attempt was last heard of."),
}


def export(whole: Sequence[ExperimentExport], to: str) -> Path:
    """Write the sums over experiments into a file, replaced at once; returns it.

    Args:
        to: the file, which should end in ``.prom``; or a folder, for ``hpcdet.prom`` in it.
    """
    path = Path(to)
    path = path / "hpcdet.prom" if path.is_dir() else path
    sums: defaultdict[str, defaultdict[Labels, float]] = defaultdict(lambda: defaultdict(float))
    for what in whole:
        for name, labels, value in _samples(what):
            user = str(what.gathered.provenance.get("user", ""))
            key = tuple(sorted({"user": user, **labels}.items()))
            newest = name == "hpcdet_newest_timestamp_seconds"
            sums[name][key] = max(sums[name][key], value) if newest else sums[name][key] + value
    files.replace(path, "".join(_lines(sums)).encode(errors="replace"), READABLE)
    return path


def _samples(what: ExperimentExport) -> Iterator[tuple[str, Mapping[str, str], float]]:
    status = what.status
    yield "hpcdet_experiments", {"state": status.state}, 1
    for trial in status.trials:
        yield "hpcdet_trials", {"state": trial.state}, 1
    for attempt in what.attempts:
        if attempt.reason:
            yield "hpcdet_attempts_total", {"reason": attempt.reason}, 1
        if attempt.last_heard:
            yield "hpcdet_newest_timestamp_seconds", {}, epoch(attempt.last_heard)
    for use in usage_table.of_experiment(what.gathered, _BY):
        labels = dict(zip(_BY, use.by, strict=True))
        hours = vars(use.slot_hours)
        yield "hpcdet_allocated_slot_seconds_total", labels, hours["allocated"] * HOUR_S
        for kind in hours.keys() - {"allocated"}:
            yield "hpcdet_slot_seconds_total", {**labels, "kind": kind}, hours[kind] * HOUR_S
    there = sum(one.bytes for one in what.checkpoints if one.state in ("complete", "superseded"))
    yield "hpcdet_checkpoint_bytes", {}, there


def _lines(sums: Mapping[str, Mapping[Labels, float]]) -> Iterator[str]:
    for name, (kind, text) in _HELP.items():
        if samples := sums.get(name):
            yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
            for labels, value in sorted(samples.items()):
                inside = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels)
                yield f"{name}{{{inside}}} {value!r}\n"


def _escaped(value: str) -> str:
    r"""Escape a label's value: only ``\``, ``"`` and ends of lines mean something there."""
    return re.sub(r'[\\"\n]', lambda found: {"\n": r"\n"}.get(found[0], "\\" + found[0]), value)
