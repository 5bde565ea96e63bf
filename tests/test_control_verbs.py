"""What users ask of a running experiment with the flags of cancel, resume, retry and set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcdet.config import changing
from hpcdet.control import commands
from hpcdet.control.controller import advance
from hpcdet.errors import ConfigError
from hpcdet.store import config, files, overrides
from hpcdet.store.records import Intent
from tests.paper import Waves, World


def intents(world: World) -> list[Intent]:
    found = [Intent.read(world.paths.intent(n)) for n in world.paths.submissions()]
    return [intent for intent in found if intent is not None]


def later(world: World, holder: Any, times: int = 3) -> None:
    for _ in range(times):
        world.clock.now += world.site.limits.poll_min_s + 1
        advance(world.paths, holder)


def test_changes_reach_what_is_submitted_later_and_outlive_every_holder(tmp_path: Path) -> None:
    world = World.make(tmp_path, Waves(count=1, width=1))
    files.write_once(world.paths.config, config.dump(world.resolved.raw))
    first = world.holder()
    advance(world.paths, first)
    worker = world.play().start("1")
    attempt = world.play().claim(worker)
    walltime = {"resources.walltime_s": "2h"}  # as a person might write the file by hand
    commands.ask(world.paths, "pause")
    commands.ask(world.paths, "resume", set=walltime)
    commands.ask(world.paths, "resume", set={"hyperparameters.rate": 1})
    advance(world.paths, first)
    first.close()
    world.play().end(attempt, "preempted", progressed=True)
    world.play().leave(worker)
    later(world, world.holder())

    old, new = intents(world)
    assert (old.overrides, new.overrides) == ({}, {"resources.walltime_s": 7200})
    assert overrides.of_submission(world.paths, 1).resources.walltime_s is None
    again = world.play().claim(world.play().start("2"))
    held = overrides.of_attempt(world.paths, again)
    assert (held.resources.walltime_s, held.raw["resources"]["walltime_s"]) == (7200, 7200)


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("hyperparameters.rate=1", "another experiment's"),
        ("resources.slots_per_trial=4", "another experiment's"),
        ("resources.walltime=2h", "did you mean 'resources.walltime_s'"),
        ("resources.walltime_s=soon", "no time"),
        ("worker.mode=other", "'shared' or 'per_trial'"),
        ("max_concurrent=many", "whole number|valid integer"),
    ],
)
def test_what_would_change_the_result_or_is_no_value_is_refused(assignment: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        changing.changes([assignment])


def test_every_key_that_may_change_exists_and_is_the_same_for_reader_and_writer() -> None:
    for key in (*overrides.AT_ONCE, *overrides.LATER):
        changed = overrides.lay(config.Resolved(), {key: "new"})
        value: Any = changed
        for part in key.split("."):
            value = getattr(value, part)
        assert value == "new"
        with pytest.raises(ConfigError, match="no value"):
            changing.checked(key, {"neither": None})
