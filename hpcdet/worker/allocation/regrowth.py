"""Growth: a trial on fewer nodes than it may have goes on with all of them once they are free.

An allocation keeps its size, so the worker leaves, and a job with the full size takes its place. It
leaves at a checkpoint, and only if the scheduler says that the missing nodes are free now.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from hpcdet.errors import HpcdetError
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.schedulers.common.base import Foresees
from hpcdet.site import Site
from hpcdet.store.config.placement import Resources
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Command, Intent
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import packed
from hpcdet.store.trials import standing

WHY = "resized"
"""Why such a worker, and the attempt in it, ends."""
_LOOK_S = 10.0


class Regrowth:
    """One worker's questions whether its trial would get all of its nodes now.

    Args:
        every_s: least time before the first question, and between two.
        ask: the question; it may hang, and so has a thread of its own that blocks no exit.
        wake: called from that thread once there is an answer.
    """

    def __init__(
        self,
        every_s: float,
        ask: Callable[[], bool],
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_s, self._ask, self._wake, self._clock = every_s, ask, wake, clock
        self._asking: threading.Thread | None = None
        self._answer = False
        self._due_at = clock() + every_s
        self._look_at = 0.0
        self._seen: tuple[int, list[str]] | None = None

    @classmethod
    def of(
        cls,
        need: Resources,
        paths: ExperimentPaths,
        me: WorkerPaths,
        allocation: Allocation,
        site: Site,
        wake: Callable[[], None],
    ) -> Regrowth | None:
        """Return that of a worker; None if its trials have all nodes, or cannot get more.

        Args:
            need: what trials need at most.
        """
        missing = need.nodes - len(allocation.nodes)
        small = need.granted(len(allocation.nodes)).nodes < need.nodes
        if not small or need.regrow_min_s is None or not site.capabilities.submit_from_compute:
            return None
        scheduler = opening.open_scheduler(site)
        if not isinstance(scheduler, Foresees):
            return None

        def ask() -> bool:
            intent = Intent.read(paths.intent(me.submission))
            if intent is None or _held(paths):
                return False
            exclude = sorted({*intent.exclude, *allocation.nodes})
            return scheduler.starts_now(paths.script(me.submission), missing, exclude)

        return cls(need.regrow_min_s, ask, wake)

    def is_time(self, trial: TrialPaths) -> bool:
        """True if the trial should leave now: it has a new checkpoint, and the nodes are free."""
        if self._asking is not None:
            if self._asking.is_alive():
                return False
            about, self._asking, self._seen = self._seen, None, None
            return self._answer and about is not None and about[0] == trial.number
        now = self._clock()
        if now < max(self._due_at, self._look_at):
            return False
        self._look_at = now + min(_LOOK_S, self._every_s)
        with contextlib.suppress(OSError):
            found = trial.number, standing.checkpoints(trial)[-1:]
            before, self._seen = self._seen, found
            if before is not None and before[0] == trial.number and before != found:
                self._due_at = now + self._every_s
                self._asking = threading.Thread(target=self._find_out, daemon=True)
                self._asking.start()
        return False

    def _find_out(self) -> None:
        self._answer = False
        with contextlib.suppress(OSError, HpcdetError):
            self._answer = self._ask()
        self._wake()


def _held(paths: ExperimentPaths) -> bool:
    """True if the user lets no job of the experiment start: the new one would wait for that."""
    commands = (Command.read(paths.command(seq)) for seq in packed.numbers(paths.commands, ".json"))
    verbs = [one.verb for one in commands if one and one.verb in ("hold", "release")]
    return verbs[-1:] == ["hold"]
