"""The node's own disk: checkpoints are committed there first, and copied to scratch by rank 0.

Training and the end of a grace period wait for the fast disk only. What the journal calls a
``checkpoint`` lies on scratch; until then it is ``checkpoint_staged``, with the node's name.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcdet.checkpoint import CheckpointFailed
from hpcdet.checkpoint.format import remove
from hpcdet.checkpoint.keep import drain as staging
from hpcdet.checkpoint.keep.drain import Drained
from hpcdet.errors import ConfigError, HpcdetError
from hpcdet.process.console import say
from hpcdet.process.location import AttemptLocation
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.trials import staged
from hpcdet.train.checkpoints.background import Background
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.telemetry.tracker import Tracker

_SPARE = 1.25
"""So much more room than the last checkpoint took must be there for the next one."""


class Stage:
    """Does nothing without ``checkpoint_storage.local_staging``, or over several nodes.

    Args:
        copied: called by rank 0, by a thread, when checkpoints have come to scratch.

    Attributes:
        folder: of this trial's checkpoints on this node; None if they are saved on scratch.
    """

    def __init__(
        self,
        place: AttemptLocation,
        peers: Peers,
        config: Resolved,
        tracker: Tracker,
        copied: Callable[[], None],
    ) -> None:
        self.folder: Path | None = None
        self._place = place
        self._peers = peers
        self._tracker = tracker
        self._copied = copied
        self._lock = threading.Lock()
        self._records: dict[str, dict[str, Any]] = {}
        self._bytes = 0
        self._why = ""
        self._works = True  # on this disk checkpoints can be written, as far as known
        where = config.checkpoint_storage.local_staging
        if where is not None and place.experiment is not None:
            found = self._find(where) if peers.ranks.chief else None
            told = peers.broadcast(None if found is None else os.fspath(found))
            self.folder = None if told is None else Path(told)
        chief = self.folder is not None and peers.ranks.chief
        self._drain = Background(self._copy) if chief else None

    def _find(self, where: str) -> Path | None:
        """On rank 0: return the folder, made ready; None, with a line in the log, without one."""
        try:
            if self._peers.ranks.local_world < self._peers.ranks.world:
                raise ConfigError("a trial over several nodes saves on scratch at once")
            assert self._place.experiment is not None
            folder = staged.prepare(where, self._place.experiment, self._place.trial.number)
            remove.leftovers(folder, self._place.attempt.number - 1)
        except (HpcdetError, OSError) as error:
            say(f"checkpoints are not staged on this node: {error}")
            return None
        return folder

    def takes(self) -> Path | None:
        """All ranks together: the folder, if the next checkpoint is to be written there."""
        if self.folder is None:
            return None
        return self.folder if self._peers.broadcast(self._works and self._fits()) else None

    def _fits(self) -> bool:
        try:
            room = os.statvfs(str(self.folder))
        except OSError:
            return False
        return room.f_bavail * room.f_frsize >= _SPARE * self._bytes

    def failed(self, error: Exception) -> None:
        """All ranks: one could not be written there. The rest of this attempt does without."""
        if self._works and self._peers.ranks.chief:
            say(f"checkpoints are saved on scratch from now on: {error}")
        self._works = False

    def committed(self, folder: Path, record: dict[str, Any], tracker: Tracker) -> None:
        """On rank 0: take note that a checkpoint was committed, with its journal ``record``."""
        self._bytes = max(self._bytes, int(record["bytes"]))
        if folder != self.folder or self._drain is None:
            tracker.record("checkpoint", sync=True, **record)
            return
        with self._lock:
            self._records[record["name"]] = record
        tracker.record(staged.STAGED, sync=True, host=socket.gethostname(), **record)
        self._drain.request()

    def request(self) -> None:
        """Rank 0: have copied what an attempt before had no time to copy."""
        if self._drain is not None:
            self._drain.request()

    def _copy(self, stop: Callable[[], bool]) -> Drained:
        trial, attempt = self._place.trial, self._place.attempt.number
        assert self.folder is not None
        try:
            done = staging.drain(self.folder, trial, attempt, stop)
        except Exception as error:  # nothing that goes wrong with a copy ends training
            done = Drained(failed=(("", f"{type(error).__name__}: {error}"),))
        for manifest in done.copied:
            with self._lock:
                record = self._records.pop(manifest.name, None)
            self._tracker.record("checkpoint", sync=True, **(record or manifest.record()))
        for name, why in done.failed:
            self._why = why
            self._tracker.record("drain_failed", name=name, error=why)
            say(f"{name} stays on this node for now: {why}")
        if done.copied:
            self._copied()
        return done

    def settle(self, hurry: Callable[[], bool], together: bool = True) -> None:
        """Wait until what is on this node only is on scratch, too.

        Args:
            hurry: whether to give up what is being copied: a later attempt on this node does it,
                or the worker, once the ranks have ended.
            together: all ranks call, and none goes on before the others.

        Raises:
            CheckpointFailed: it could not be copied; it is still on this node.
        """
        if self.folder is None:
            return
        settled = given_up = False
        while not settled:
            given_up = hurry()
            settled = self._drain is None or self._drain.settled(hurry=given_up)
            if together:
                settled, given_up = self._peers.broadcast((settled, given_up))
        problem = "" if given_up or self._drain is None else self._left_behind()
        if together:
            problem = self._peers.broadcast(problem)
        if problem:
            raise CheckpointFailed(problem, where=str(self.folder))

    def _left_behind(self) -> str:
        assert self.folder is not None
        left = staged.waiting(self.folder, self._place.trial)
        return f"{left[0]} could not be copied from this node: {self._why}" if left else ""

    def leave(self) -> None:
        """Rank 0: the trial needs nothing here any more, unless something still waits."""
        if self.folder is None or self._drain is None:
            return
        if not staged.waiting(self.folder, self._place.trial):
            shutil.rmtree(self.folder.parent, ignore_errors=True)
