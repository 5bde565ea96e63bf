"""The controls of this trial, as rank 0 reads them, and the length of training that they set."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import PEER_LOST
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.searcher_keys import Searcher
from hpcdet.store.folder.records import Action, Best
from hpcdet.store.trials.controls import in_force
from hpcdet.train.comm.agreement import NOTHING, Cause, Orders
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.telemetry.tracker import Tracker
from hpcdet.units import Length, Units

_LEAVES: dict[Action, Cause] = {
    "pause": "paused",
    "stop": "stopped",
    "kill": "stopped",
    "fail": "stopped",
}


class Wanted:
    """The control and the rung decision in force when rank 0 last looked.

    Attributes:
        said: by the control that was in force.
        heard: the rung up to which the search has decided, in its unit, where trials wait for it.
    """

    def __init__(self, place: AttemptLocation, config: Resolved, tracker: Tracker) -> None:
        self.said = NOTHING
        self.heard = 0
        self._place, self._config, self._tracker = place, config, tracker

    def read(self) -> None:
        """Read the control in force now; where a script runs alone there is none.

        A trial that its user canceled without a save ends here: its worker kills it anyway, but
        a scheduler that ends the allocation asks it to save before.

        Raises:
            OSError: the storage is away.
        """
        control = in_force(self._place.trial) if self._place.experiment is not None else None
        if control is None:
            return
        if control.action == "kill" and control.now:
            self._tracker.close()
            os._exit(PEER_LOST)
        self.said = Orders(_LEAVES.get(control.action), control.until)
        self.heard = control.heard

    def longer(self) -> list[int]:
        """Lengths that a search by rungs was made longer to."""
        experiment = self._place.experiment
        if experiment is None or not self._config.searcher.rungs:
            return []
        from hpcdet.store.cost import limits  # only a search by rungs has such

        return limits.in_force(experiment, self._config).longer


class TrainingLength:
    """The length of training, equal on all ranks.

    Attributes:
        until: length at which training ends, as far as any rank knows; None if there is none.
        rungs: where the search compares trials, ascending; empty if it does not.
    """

    def __init__(self, asked: Searcher, wanted: Wanted, peers: Peers) -> None:
        self.until: Length | None = None
        self.rungs = asked.rungs
        self._asked, self._wanted, self._peers = asked, wanted, peers

    def read(self) -> None:
        """Read it from the control in force, else from the config; all ranks call together."""
        longer = list[int]()
        if self._peers.ranks.chief:
            self._wanted.read()
            longer = self._wanted.longer()
        until = self._wanted.said.until
        told, longer = self._peers.broadcast((until and until.encode(), longer))
        self.until = Length.decode(told) if told else self._asked.max_length
        self.rungs = _lengthen(self.rungs, longer)

    @property
    def asked(self) -> Length | None:
        """The length in the control that rank 0 read last; None if there is none."""
        return self._wanted.said.until

    def extend(self, until: Length) -> None:
        """Train until ``until`` from now on."""
        if until != self.until:
            self.until = until
            self.rungs = _lengthen(self.rungs, [until.value])

    def at_rung(self, before: Units, after: Units) -> bool:
        """True if a step has come to a length at which the search compares trials."""
        return bool(self.rungs) and any(
            after.reached(rung) and not before.reached(rung) for rung in self.rungs
        )


def experiment_best(place: AttemptLocation) -> Best | None:
    """Return the experiment's best validation, as the holder of the lease last published it."""
    with contextlib.suppress(OSError):  # storage that is away for a moment ends nothing
        return Best.read(place.experiment.best) if place.experiment else None
    return None


def _lengthen(rungs: list[Length], longer: Iterable[int]) -> list[Length]:
    """Return the rungs of an extended search; its former end becomes one of them.

    A search without rungs, whose trials are not compared, stays without.
    """
    if not rungs:
        return []
    values = sorted({*longer, *(rung.value for rung in rungs)})
    return [Length(rungs[0].unit, value) for value in values]
