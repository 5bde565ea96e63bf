"""The controls of this trial, as rank 0 reads them in the experiment's folder."""

from __future__ import annotations

import contextlib
import os

from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import PEER_LOST
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.cost import limits
from hpcdet.store.folder.records import Action, Best
from hpcdet.store.trials.controls import in_force
from hpcdet.train.comm.agreement import NOTHING, Cause, Orders
from hpcdet.train.telemetry.tracker import Tracker

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
        """Read the control in force now.

        A trial that its user canceled without a save ends here: its worker kills it anyway, but
        a scheduler that ends the allocation asks it to save before.

        Raises:
            OSError: the storage is away.
        """
        control = in_force(self._place.trial)
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
        return limits.in_force(experiment, self._config).longer

    def best(self) -> Best | None:
        """Return the experiment's best validation, as the holder of the lease last published it."""
        experiment = self._place.experiment
        with contextlib.suppress(OSError):  # storage that is away for a moment ends nothing
            return Best.read(experiment.best) if experiment else None
        return None
