"""A worker's reasons to leave."""

from __future__ import annotations

import contextlib
import time
from collections import Counter

from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.cost.spending import Spending
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, End, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.worker.allocation import regrowth
from hpcdet.worker.allocation.governed_node import GovernedNode
from hpcdet.worker.allocation.node_groups import NodeGroups
from hpcdet.worker.allocation.notice import Notices
from hpcdet.worker.allocation.time_left import Remaining

LOOK_S = 0.5
_BAD_NODE = 2
_SELDOM_S = 10.0


class Departure:
    """The reasons of a worker to leave.

    Attributes:
        why: the first one; "" while it stays.
        refused: by node, what it does not attest that the policy requires.
    """

    def __init__(
        self,
        paths: ExperimentPaths,
        me: WorkerPaths,
        experiment: Resolved,
        site: Site,
        notices: Notices,
        remaining: Remaining,
        *,
        node: GovernedNode,
        groups: NodeGroups,
    ) -> None:
        self.why = ""
        self.refused: dict[str, str] = {}
        self._paths, self._me = paths, me
        self._worker = experiment.worker
        self._kill_wait_s = site.limits.kill_wait_s
        self._notices, self._remaining = notices, remaining
        self._node, self._groups = node, groups
        self._told_by = ""
        self._launch_failures: Counter[int] = Counter()
        self._drain_until = 0.0
        self._look_at = 0.0

    @property
    def notice(self) -> str:
        """The notice that the allocation ends: a signal, or an attempt's reason; "" if none."""
        return self._notices.heard() or self._told_by

    def resize(self) -> None:
        """Leave for more nodes, unless there is another reason."""
        self.why = self.why or regrowth.WHY

    @property
    def asks(self) -> str:
        """Why trials have to leave now, of the allocation's end or of the worker's own; or ""."""
        last = "walltime" if self._remaining.is_last else ""
        return self.notice or last or (self.why if self.why == regrowth.WHY else "")

    def look(self, spending: Spending, *, idle: bool) -> None:
        """Look for a reason. ``idle``: no trial runs here."""
        self.why = self.why or self._reason(spending, idle)

    def is_lost(self) -> bool:
        """True if others believe this worker lost, and have taken over what it had.

        Its host may have been out of reach for a while. The file is looked at seldom.
        """
        if self.why != "lost" and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _SELDOM_S
            with contextlib.suppress(OSError):
                self.why = "lost" if WorkerEnd.read(self._me.end) is not None else self.why
        return self.why == "lost"

    def is_refused(self) -> bool:
        """True if the node does not attest what the policy requires; nothing is claimed then.

        Asked before each claim, as a statement ends. Raises OSError: the storage is unavailable.
        """
        if why := self._node.refusal():
            self.refused[self._node.name] = why
            self.why = self.why or "bad_node"
        return bool(why)

    def after(self, end: End, lane: int, used_up: bool) -> None:
        """Learn from the end of an attempt in a lane. ``used_up``: so was its reservation."""
        group = self._groups.of(lane)
        failed = end.reason == "launch_failed"
        self._launch_failures[group] = self._launch_failures[group] + 1 if failed else 0
        if end.reason == "refused":
            self.refused |= dict.fromkeys(end.nodes, end.error)
        if end.reason in ("preempted", "walltime", "node_fail") and not used_up:
            self._told_by = end.reason  # the allocation is what ends, and so all that is in it
            self.why = self.why or ("time" if end.reason == "walltime" else "signal")
        if end.excludes or end.reason == "refused" or self._launch_failures[group] >= _BAD_NODE:
            self._groups.close(group)
            self.why = self.why or ("bad_node" if self._groups.all_closed else "")
        if self._worker.mode == "per_trial":
            self.why = self.why or "idle"

    def left_to_drain(self) -> float:
        """Seconds left to copy staged checkpoints; after a notice at most half of the kill wait."""
        left = self._remaining.left_s - LOOK_S
        if not self._notices.heard():
            return left
        self._drain_until = self._drain_until or time.monotonic() + self._kill_wait_s / 2
        return min(left, self._drain_until - time.monotonic())

    def _reason(self, spending: Spending, idle: bool) -> str:
        with contextlib.suppress(OSError):  # unavailable storage ends nothing
            if Closed.read(self._paths.closed) is not None:
                return "closed"
            if WorkerEnd.read(self._me.end) is not None:
                return "lost"  # so others believe, and have taken over what it had
        if self._notices.heard():
            return "signal"
        with contextlib.suppress(OSError):
            if idle and spending.room() < 1:
                return "idle"  # what it holds costs, too
        return "" if self._remaining.suffices(self._worker.min_segment_s) else "time"
