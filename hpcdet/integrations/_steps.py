"""The duties of hpcdet before and after each step of a framework's loop.

Saving happens at the begin of a step, when all that follows the step before (validation, the
turn of an epoch) is over, and random numbers are put back at the begin of the first one: the
same place in the program, so that nothing drawn in between can differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hpcdet import core
from hpcdet.data import rng
from hpcdet.units import Units


class StepCounter:
    """Asked by an adapter at the begin of each step, notified at its end. All ranks together.

    Attributes:
        state: what the newest checkpoint holds, after ``restore``; None at the beginning.
        leaving: the next ``begin`` saves and leaves.
        inherited: that state is another trial's: options of its optimizers are not this one's.
        at_rung: the step that is done has come to where the searcher compares trials.
        private: asked, after the state, for what each rank has for itself.
    """

    def __init__(self, context: core.Context) -> None:
        self.context = context
        self.state: Any = None
        self.inherited = self.leaving = self.at_rung = False
        self.private: Callable[[], Any] = lambda: None
        self._random: rng.State | None = None
        self._before: Any = None  # a validation
        self._begun = False
        self._due = False
        self._saved = -1

    def restore(self) -> Any:
        """The state to go on from, or None.

        Its random numbers wait for the first step; until then all is drawn as at the beginning,
        since frameworks take seeds of samplers from there.
        """
        context = self.context
        beginning = rng.capture_cpu()
        self.state = context.checkpoint.latest()
        self.inherited = context.checkpoint.inherited
        if self.state is not None:
            self._random = rng.capture(context.session.registered.generators)
            self._saved = context.train.units.batches
            rng.restore_cpu(beginning)
        return self.state

    @property
    def reached(self) -> bool:
        """Whether the length that the searcher wants is behind."""
        until = self.context.searcher.until
        return until is not None and self.context.train.units.reached(until)

    def begin(self, state: Callable[[], Any]) -> None:
        """A step begins: save if that is due, and leave if that was asked for.

        Raises:
            SystemExit: with 0, to leave the training script: ``core.init``'s block says why.
        """
        if not self._begun:
            self._begun = True
            self._first()
            if self.state is None:
                self.save(state)
        elif self.leaving or self._due:
            self.save(state)
        if self.leaving or self.reached:
            raise SystemExit(0)

    def _first(self) -> None:
        session = self.context.session
        if self._random is not None:
            rng.restore(self._random, session.registered.generators)
            self._random = None
        else:  # models begin equal on all ranks; from here on each has a stream of its own
            session.seed(session.ranks.rank, 0)

    def done(self, batches: int, *, records: int, epochs: int) -> bool:
        """A step is done; returns whether training should end, its length being reached."""
        train, preempt = self.context.train, self.context.preempt
        before, now = train.units, Units(batches, records, epochs)
        train.set_progress(now)
        self.at_rung = self.context.session.length.at_rung(before, now)
        self.leaving = preempt.should_preempt()
        self._due = self._due or preempt.checkpoint_due
        return self.reached

    def due(self) -> None:
        """The next ``begin`` saves."""
        self._due = True

    def validating(self) -> None:
        """A validation may begin, and its loaders with it."""
        self._before = rng.capture_cpu()

    def validated(self) -> None:
        """It is over, and has drawn nothing: validating more often changes no weight."""
        if self._before is not None:
            rng.restore_cpu(self._before)
            self._before = None

    def turned(self, epochs: int) -> bool:
        """So many epochs are over; returns whether training should end with that."""
        train = self.context.train
        train.set_progress(dataclasses.replace(train.units, epochs=epochs))
        return self.reached

    def save(self, state: Callable[[], Any]) -> None:
        """Make a checkpoint of this step, unless there is one."""
        batches = self.context.train.units.batches
        self._due = False
        if batches != self._saved:
            self.context.checkpoint.save(state(), batches, private=self.private())
            self._saved = batches
