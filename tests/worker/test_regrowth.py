"""Growth of a trial that runs on fewer nodes than it may have."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import Unavailable
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.site import Site
from hpcdet.site_files import load_site as sites
from hpcdet.store.config.placement import Resources
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Command, Intent
from hpcdet.store.fs import files
from hpcdet.store.trials.standing import MANIFEST
from hpcdet.worker.allocation.regrowth import Regrowth

NEED = Resources(slots_per_trial=8, nodes=4, slots_per_node=2, min_slots_per_trial=2)
SMALL = Allocation("7_0", ("n1", "n2"))


class Asked:
    """A scheduler with an answer, and what it was asked."""

    def __init__(self, answer: bool = True) -> None:
        self.answer = answer
        self.down = False
        self.questions: list[tuple[Path, int, list[str]]] = []

    def starts_now(self, script: Path, nodes: int, exclude: Sequence[str]) -> bool:
        self.questions.append((script, nodes, list(exclude)))
        if self.down:
            raise Unavailable("the scheduler is on holiday")
        return self.answer


def save(paths: ExperimentPaths, step: int, trial: int = 1) -> None:
    files.make_folder(paths.trial(trial).checkpoint(step, 1))
    (paths.trial(trial).checkpoint(step, 1) / MANIFEST).write_text("{}")


class Growing:
    """A worker's questions, by a clock that stands still."""

    def __init__(self, paths: ExperimentPaths, asked: Asked, every_s: float = 100) -> None:
        self.paths, self.asked, self.now = paths, asked, 0.0
        self.woken = threading.Event()

        def ask() -> bool:
            return asked.starts_now(Path("script"), 1, [])

        self.regrowth = Regrowth(every_s, ask, self.woken.set, lambda: self.now)

    def look(self, after_s: float = 0, trial: int = 1, then: int = 0) -> bool:
        """The answer to what a look asks for; ``then``: the trial that runs by then."""
        self.now += after_s
        at_once = self.regrowth.is_time(self.paths.trial(trial))
        assert not at_once, "before there was time for an answer"
        if self.regrowth._asking is None:
            return False
        assert self.woken.wait(60)
        self.woken.clear()
        self.regrowth._asking.join()
        return self.regrowth.is_time(self.paths.trial(then or trial))


def test_it_asks_at_a_new_checkpoint_once_that_much_time_is_over(paths: ExperimentPaths) -> None:
    asked = Asked(answer=False)
    growing = Growing(paths, asked)
    save(paths, 5)
    assert not growing.look(99)
    save(paths, 10)
    assert not growing.look(1)  # what is there by now is not new
    assert not growing.look(11)
    assert not asked.questions
    save(paths, 15)
    assert not growing.look(11)
    assert len(asked.questions) == 1
    save(paths, 20)
    assert not growing.look(99)
    assert len(asked.questions) == 1
    assert not growing.look(11)
    save(paths, 25)
    asked.answer = True
    assert growing.look(11)
    assert len(asked.questions) == 2


def test_checkpoints_of_another_trial_are_not_news(paths: ExperimentPaths) -> None:
    asked = Asked()
    growing = Growing(paths, asked)
    save(paths, 5)
    assert not growing.look(100)
    save(paths, 10, trial=2)
    assert not growing.look(11, trial=2)
    assert not asked.questions
    save(paths, 15, trial=2)
    assert not growing.look(11, trial=2, then=1)  # the answer comes when that one has ended
    assert len(asked.questions) == 1
    assert not growing.look(0)


def test_no_answer_is_a_no(paths: ExperimentPaths) -> None:
    asked = Asked()
    asked.down = True
    growing = Growing(paths, asked)
    growing.look(100)
    save(paths, 5)
    assert not growing.look(11)
    assert len(asked.questions) == 1


def of(
    paths: ExperimentPaths,
    monkeypatch: pytest.MonkeyPatch,
    asked: object,
    *,
    need: Resources = NEED,
    allocation: Allocation = SMALL,
    **can: Any,
) -> Regrowth | None:
    site = sites.load("generic-slurm")
    can = {"submit_from_compute": True, **can}
    changed = site.model_copy(update={"capabilities": site.capabilities.model_copy(update=can)})

    def opened(given: Site) -> object:
        assert given is changed
        return asked

    monkeypatch.setattr(opening, "open_scheduler", opened)
    return Regrowth.of(need, paths, paths.worker(1, 0, 0), allocation, changed, lambda: None)


def test_it_asks_for_what_is_missing_elsewhere(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked()
    regrowth = of(paths, monkeypatch, asked)
    assert regrowth is not None
    assert not regrowth._ask()  # there is no record of the submission
    intent = Intent(1, "e-1", "t", tasks=1, throttle=1, term=1, exclude=["n9", "n1"])
    intent.write_once(paths.intent(1))
    assert regrowth._ask()
    assert asked.questions == [(paths.script(1), 2, ["n1", "n2", "n9"])]
    Command("hold").write_once(paths.command(1))
    assert not regrowth._ask()
    Command("release").write_once(paths.command(2))
    assert regrowth._ask()


@pytest.mark.parametrize(
    "differs",
    [
        {"allocation": Allocation("7_0", ("n1", "n2", "n3", "n4"))},
        {"need": Resources(slots_per_trial=8, nodes=4, slots_per_node=2)},
        {"need": Resources(8, 2, regrow_min_s=None, nodes=4, slots_per_node=2)},
        {"submit_from_compute": False},
        {"asked": object()},
    ],
    ids=["all nodes", "no fewer accepted", "null", "no submission from nodes", "never foresees"],
)
def test_who_cannot_grow_does_not_ask(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch, differs: dict[str, Any]
) -> None:
    assert of(paths, monkeypatch, **{"asked": Asked(), **differs}) is None
