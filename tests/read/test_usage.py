"""Slot hours: every one that was held is in one kind, however attempts went."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdet.read.experiment import gather
from hpcdet.read.usage import costs, efficiency, slot_hours, usage_table
from hpcdet.store.cost.budget import Charge
from hpcdet.store.cost.charges import Book
from hpcdet.store.fs import files
from tests.builders import EPOCH, Builder, sweep
from tests.commands import Cli

REASONS = (
    *("completed", "preempted", "walltime", "user_error", "oom", "node_fail", "lost", "stopped"),
    *("launch_failed", "canceled", "resized"),
)
ATTEMPT = st.fixed_dictionaries({
    "trial": st.integers(0, 2),
    "reason": st.sampled_from(REASONS),
    "steps": st.integers(0, 3),
    "saved": st.booleans(),
    "validating": st.floats(0, 5),
    "waiting": st.floats(0, 5),
    "pause": st.floats(0, 40 * 86400),
})  # fmt: skip


def history(root: Path, attempts: list[dict[str, Any]], charged: float | None) -> Builder:
    """An experiment whose attempts went as drawn, by one worker, perhaps charged for."""
    built = Builder(root, project="p", workspace="w")
    built.job()
    begun = EPOCH.timestamp() + built.clock
    worker = built.worker(0)
    trials = [built.trial(), built.trial(), built.trial()]
    for number, drawn in enumerate(attempts):
        built.clock += drawn["pause"]
        attempt = trials[drawn["trial"]].attempt()
        for step in range(1, drawn["steps"] + 1):
            attempt.metrics("training", step, loss=1.0)
            phases = {"validation": drawn["validating"], "waiting": drawn["waiting"]}
            seconds = 1.0 + sum(phases.values())
            line = {"rank": 0, "host": "n1", "batches": step, "steps": 1, "seconds": seconds}
            attempt.line("profile", phases={**phases, "forward": 1.0}, **line)
        if drawn["saved"]:
            attempt.checkpoint(100 + number)
        attempt.end(drawn["reason"])
    if charged is not None:
        Book(built.paths).write(
            [Charge(worker, "1", 1, begun, EPOCH.timestamp() + built.clock, charged)], [1]
        )
    built.close()
    return built


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ATTEMPT, max_size=6), st.none() | st.floats(0, 1e7))
def test_all_kinds_add_up_to_what_was_held(
    attempts: list[dict[str, Any]], charged: float | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        built = history(Path(folder) / "random-0001", attempts, charged)
        gathered = gather.gather(built.paths)
        [row] = usage_table.of_experiment(gathered, ["user"])
        hours = asdict(row.slot_hours)
        parts = sum(value for kind, value in hours.items() if kind not in ("queued", "allocated"))
        assert parts == pytest.approx(hours["allocated"], abs=1e-5)
        assert hours["allocated"] == pytest.approx(costs.spent(gathered).slot_hours, abs=1e-5)
        assert all(value >= 0 for value in hours.values())
        months = usage_table.of_experiment(gathered, ["month"])
        assert len({month.by for month in months}) == len(months)
        together = slot_hours.total(month.slot_hours for month in months)
        for kind, value in asdict(together).items():
            assert value == pytest.approx(hours[kind], abs=1e-5 * (1 + len(months))), kind
        pieces = slot_hours.pieces(gathered, costs.until(gathered))
        middle = EPOCH.timestamp() + built.clock / 2
        halves = slot_hours.total(
            [
                slot_hours.added(pieces, -math.inf, middle),
                slot_hours.added(pieces, middle, math.inf),
            ]
        )
        assert halves.allocated == pytest.approx(hours["allocated"], abs=1e-5)


def test_each_kind_has_its_seconds(tmp_path: Path) -> None:
    drawn = {"trial": 0, "steps": 2, "validating": 0.5, "waiting": 0.25, "pause": 0.0}
    ended = [{**drawn, "saved": True, "reason": r} for r in ("completed", "preempted", "oom")]
    built = history(tmp_path / "told-0001", ended, None)
    [row] = usage_table.of_experiment(built.paths, ["state", "project"])
    assert row.by == ("COMPLETED", "p") and row.trials == 1
    hours = {kind: value * 3600 for kind, value in asdict(row.slot_hours).items()}
    # a second for each record, two ranks: what was preempted ended two records behind its
    # checkpoint, what ran out of memory one; one worker's slot was held
    assert hours["lost"] == pytest.approx(2 * hours["failed"], rel=0.01) and hours["failed"] > 0
    assert hours["validating"] == pytest.approx(2 * hours["idle"], rel=0.01)
    assert hours["validating"] > 0 and hours["saving"] == 0 and hours["starting"] > 0
    [shown] = [one for one in efficiency.efficiency(built.paths) if one.trial == 1]
    for kind in ("starting", "lost", "failed", "idle"):
        assert getattr(shown.waste, kind) == pytest.approx(hours[kind] / 3600, abs=1e-6), kind
    gathered = gather.gather(built.paths)
    found = slot_hours.pieces(gathered, costs.until(gathered))
    queued = sum(one.slot_s for one in found if (one.kind, one.trial) == ("queued", 1)) / 3600
    assert shown.waste.waiting == pytest.approx(queued, abs=1e-6)


def test_usage_is_grouped_and_cut_by_time(cli: Cli) -> None:
    sweep(cli.root / "digits-7f3a")
    other = sweep(cli.root / "other-1111")
    record = json.loads(other.paths.provenance.read_text())
    other.paths.provenance.write_bytes(
        files.canonical({**record, "user": "bob", "account": "physics"})
    )
    by_user = cli("usage", "--by", "user", "-o", "json").items
    assert [row["by"] for row in by_user] == [{"user": "ada"}, {"user": "bob"}]
    whole = cli("usage", "--by", "account,state,partition,project", "-o", "json").items
    assert {row["by"]["account"] for row in whole} == {"", "physics"}
    assert sum(row["slot_hours"]["allocated"] for row in whole) == pytest.approx(
        sum(row["slot_hours"]["allocated"] for row in by_user), abs=1e-5
    )
    table = cli("usage", "--by", "user,month").out
    assert "2026-03" in table and "ada" in table
    assert max(map(len, table.splitlines())) <= 80
    assert cli("usage", "--since", "1h", "-o", "json").items == []
    assert "keys: user" in cli("usage", "--by", "usr", code=2).err
    assert "is no time" in cli("usage", "--since", "soon", code=2).err
