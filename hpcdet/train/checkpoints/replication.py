"""Copies on project storage of what the policy keeps, made beside the training by rank 0."""

from __future__ import annotations

from collections.abc import Callable

from hpcdet import checkpoint
from hpcdet.checkpoint import CheckpointFailed, Secured
from hpcdet.errors import HpcdetError
from hpcdet.process.console import say
from hpcdet.process.location import AttemptLocation
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder import scratch
from hpcdet.train.checkpoints.background import Background
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.telemetry.tracker import Tracker


class Copies:
    """Does nothing where an experiment is all in one place."""

    def __init__(
        self, place: AttemptLocation, peers: Peers, config: Resolved, tracker: Tracker
    ) -> None:
        self._place = place
        self._peers = peers
        self._config = config
        self._tracker = tracker
        split = place.experiment is not None and place.trial.kept is not None
        self._safe = Background(self._secure) if split and peers.ranks.chief else None

    def request(self) -> None:
        """Rank 0: have copied what there is from now on, or was before."""
        if self._safe is not None:
            self._safe.request()

    def prepare(self) -> None:
        """See that there is a folder to save in: a purge may have taken it while this ran.

        Raises:
            ConfigError: it is not this experiment's (``scratch.prepare``).
            Unavailable: scratch cannot be used.
        """
        if self._place.experiment is not None and self._place.trial.kept is not None:
            scratch.prepare(self._place.experiment)

    def prepare_together(self) -> None:
        """``prepare``, by all ranks together.

        Raises:
            CheckpointFailed: it failed on some rank; on all.
        """
        if self._place.experiment is None or self._place.trial.kept is None:
            return
        problem = ""
        try:
            self.prepare()
        except HpcdetError as error:
            problem = str(error)
        problems = [text for text in self._peers.allgather(problem) if text]
        if problems:
            raise CheckpointFailed(problems[0])

    def settle(self, hurry: Callable[[], bool], together: bool = True) -> None:
        """Wait until what the policy keeps has its copy on project storage.

        Args:
            hurry: whether to give up what is being copied; a later attempt does it then.
            together: all ranks call, and none goes on before the others.
        """
        if self._place.experiment is None or self._place.trial.kept is None:
            return
        settled = False
        while not settled:
            settled = self._safe is None or self._safe.settled(hurry=hurry())
            if together:
                settled = self._peers.broadcast(settled)
        self.note()

    def _secure(self, stop: Callable[[], bool]) -> Secured:
        experiment, trial = self._place.experiment, self._place.trial.number
        assert experiment is not None
        policy = checkpoint.RetentionRules.of(self._config)
        try:
            return checkpoint.secure(
                experiment, policy, trial, self._place.attempt.number, stop=stop
            )
        except Exception as error:  # nothing that goes wrong with a copy ends training
            return Secured(failed=(("", f"{type(error).__name__}: {error}"),))

    def note(self) -> None:
        """Record what has become of copies."""
        for result in self._safe.results() if self._safe is not None else ():
            for name in result.copied:
                self._tracker.record("checkpoint_copied", name=name)
            for name, error in result.failed:
                self._tracker.record("copy_failed", name=name, error=error)
                say(f"no copy of {name} on project storage: {error}")
