"""The worker: it claims trials, runs them and leaves."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hpcdet.errors import HpcdetError
from hpcdet.jobs.script import warm_launch
from hpcdet.jobs.script.launch import launch
from hpcdet.launchers.common import Launch
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.schedulers.common.base import REQUEUE
from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.cost.spending import Spending
from hpcdet.store.folder import scratch
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.held_folder import Held, hold, identity
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import End, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import files, journal
from hpcdet.warm import oom_kills
from hpcdet.worker import again, avoided_host
from hpcdet.worker.allocation import regrowth, time_left
from hpcdet.worker.allocation.fitting import Fitting
from hpcdet.worker.allocation.governed_node import GovernedNode
from hpcdet.worker.allocation.node_groups import NodeGroups
from hpcdet.worker.allocation.notice import Notices
from hpcdet.worker.allocation.regrowth import Regrowth
from hpcdet.worker.allocation.time_left import Remaining
from hpcdet.worker.attempts import close_attempt, drain_staging
from hpcdet.worker.attempts.cancels import EVERY_S, Cancels
from hpcdet.worker.attempts.close_attempt import Circumstances
from hpcdet.worker.attempts.lane import Lane
from hpcdet.worker.attempts.step import RunningStep, start
from hpcdet.worker.attempts.warm_ranks import WarmRanks
from hpcdet.worker.claims import claims
from hpcdet.worker.claims.claimable import Outlook
from hpcdet.worker.departure import LOOK_S, Departure
from hpcdet.worker.heartbeat import BEAT_S, Heartbeat
from hpcdet.worker.turns.storage_retry import START_S, insist, within
from hpcdet.worker.turns.worker_turns import WorkerCrank

_SOON_S = 1.0


@dataclass
class Worker:
    """The worker of one array task; ``work`` runs it and returns the exit code."""

    paths: ExperimentPaths
    experiment: Resolved
    site: Site
    allocation: Allocation
    notices: Notices
    me: WorkerPaths
    log: journal.Writer
    crank: WorkerCrank
    held: Held | None = None
    regrowth: Regrowth | None = None
    _busy: list[Lane] = field(default_factory=list)
    _noted: bool = False

    def __post_init__(self) -> None:
        self.held = self.held or hold(self.paths.root)
        self.opened = self.held.paths
        self.spending = Spending(self.paths, self.experiment)
        self.lanes = self.experiment.lanes
        self.remaining = Remaining(self.allocation.end_at, self.site.limits.signal_lead_s)
        self.heartbeat = Heartbeat(self.me)
        node = GovernedNode(self.opened, self.experiment, self.site, self.allocation)
        self.groups = NodeGroups(self.experiment, self.allocation)
        self.leaving = Departure(
            self.paths,
            self.me,
            self.experiment,
            self.site,
            self.notices,
            self.remaining,
            node=node,
            groups=self.groups,
        )
        self.fitting = Fitting(self.experiment, self.remaining, self._note)
        self.outlook = Outlook(self.paths)
        self.cancels = Cancels(self.paths, min(EVERY_S, self.crank.every_s))
        self._judges = ThreadPoolExecutor(self.lanes, "judge")
        self.warm = WarmRanks(self.experiment, self._note)

    def work(self) -> int:
        """Run trials until none is left or time is up; return the exit code."""
        try:
            return self._work()
        except OSError:  # its end is unrecorded, as if it was killed: its script decides
            traceback.print_exc()
            return REQUEUE if self.site.capabilities.requeue == "user" else 1
        finally:
            self.warm.close()

    def _work(self) -> int:
        self._note(
            "start",
            job=self.allocation.job,
            nodes=list(self.allocation.nodes),
            end_at=self.allocation.end_at,
        )
        # it imports while this worker closes what others left
        nursery = warm_launch.nursery(self.experiment, self.site, self.paths, self.allocation)
        self.warm.start(nursery)
        left_s = within(START_S, self.notices.heard)
        for attempt in insist(lambda: claims.close_predecessors(self.paths, self.me), left_s):
            self._journal_end(attempt, End.read(attempt.end))
        avoided = avoided_host.avoided(self.paths, self.me.submission, self.allocation.nodes)
        # of a single machine there is no other: only its user may say that it is to be avoided
        asked = self.experiment.resources.exclude_nodes
        if avoided and (opening.of(self.site).cluster or set(avoided) <= set(asked)):
            self.groups.close_with(avoided)
            if self.groups.all_closed:
                return self._leave_host(avoided)
        why = self._take_trials()
        if heard := self.notices.heard():
            self._note_notice(heard)
        # a task that ended by an error would not be requeued, and might not be replaced
        end = insist(lambda: self._end(why), self.leaving.left_to_drain)
        insist(lambda: end.write_once(self.me.end), self.leaving.left_to_drain)
        self._note("end", why=end.why, sync=True)
        if end.returns:
            return REQUEUE
        # perhaps nobody is left to see that this worker must be replaced; an error has the batch
        # script and the job behind the array see to that
        return 0 if end.why in ("closed", "lost") or self.crank.last_turn() else 1

    def _leave_host(self, avoided: list[str]) -> int:
        """Take nothing on a host that is to be avoided; return once others need not meet it."""
        end = WorkerEnd(avoided_host.WHY, self.me.name, files.now())
        insist(lambda: end.write_once(self.me.end), self.leaving.left_to_drain)
        self._note("end", why=end.why, nodes=avoided, sync=True)
        if not self.crank.last_turn():
            return 1

        def wait() -> bool:
            self.notices.wait(self.crank.every_s)
            return not self.notices.heard() and not self.remaining.is_last

        with contextlib.suppress(OSError):
            avoided_host.stay(self.paths, self.me, self.allocation.nodes, wait)
        return 0

    def _end(self, why: str) -> WorkerEnd:
        """Return the record of why this worker ends and whether its task is requeued."""
        inside = opening.of(self.site).inside
        if why == regrowth.WHY and self.notices.heard():
            why = "signal"  # the scheduler may start this task again by itself
        if why == "signal" and self.site.capabilities.rerun == "server":
            returns = inside.returns(self.allocation)
            return WorkerEnd(why, self.me.name, files.now(), returns=returns)
        wanted = why in ("time", "signal") and self._wanted_again()
        returns = wanted and again.requeue(self.paths, self.me, REQUEUE, self.site)
        if wanted and not returns:
            why = "spent"  # the batch script would not requeue it, and none would take its place
        refused = self.leaving.refused
        return WorkerEnd(why, self.me.name, files.now(), returns=returns, refused=refused)

    def _wanted_again(self) -> bool:
        """True if this task should be requeued: the site allows it, and there will be work."""
        if self.site.capabilities.requeue != "user":
            return False
        if not self._something_to_take():
            self.crank.turned(
                self.remaining.left_s / 2
            )  # what ended last may have made another trial
        return self._something_to_take()

    def _something_to_take(self) -> bool:
        stands = (self.outlook.now(trial.number) for trial in self.paths.trials())
        return any(claims.may_take(self.me, one) for one in stands) and self.spending.room() >= 1

    def _take_trials(self) -> str:
        """Run trials until there is a reason to leave; return it once every lane has ended."""
        idle_since = time.monotonic()
        look_at, turns, settled = 0.0, 0, False
        while True:
            if not self.warm.settled:
                idle_since = time.monotonic()
            elif not settled:
                settled, look_at = True, 0.0
            self.heartbeat.tick(self.leaving.why)
            if self.leaving.is_lost():
                for lane in self._busy:
                    lane.end()  # it commits nothing more
            else:
                self.crank.turn()
            for end, lane in self._ends():
                idle_since, look_at = time.monotonic(), 0.0
                self.leaving.after(end, lane.number, lane.is_used_up)
            news = self.crank.turns != turns or bool(self.notices.heard())
            if len(self._busy) < self.lanes and (news or time.monotonic() >= look_at):
                # seldom on a cluster: many workers look through the same folders
                # but sooner while an end is new: what comes of it is decided within seconds
                idle_s = time.monotonic() - idle_since
                every_s = min(self.crank.every_s, max(_SOON_S, idle_s))
                turns, look_at = self.crank.turns, time.monotonic() + every_s
                self.leaving.look(self.spending, idle=not self._busy)
                self._fill_lanes()
            if self.leaving.why and not self._busy:
                return self.leaving.why
            over_s = time.monotonic() - idle_since - self.experiment.worker.idle_s
            if not self._busy and over_s > 0 and not self._awaits_the_lost(over_s):
                return "idle"
            self._tell()
            for lane in self._busy:
                lane.enforce()
            awake = self._busy or self.crank.decides
            seconds = LOOK_S if awake else max(0.0, look_at - time.monotonic())
            self.notices.wait(seconds, self.warm.descriptors)

    def _awaits_the_lost(self, over_s: float) -> bool:
        """True if a silent worker's trial may soon be free and no other worker can be submitted.

        Where none can, a task that left before that would be wasted. It waits as long as a dead
        holder's lease and two answers of the scheduler may take.
        """
        if not self.site.capabilities.nobody_submits:
            return False
        longest = self.site.lease_ttl_s + 4 * self.site.limits.poll_min_s
        try:
            return over_s < longest and claims.is_silent(self.paths, 4 * BEAT_S)
        except OSError:
            return True  # who cannot look does not know; there is an end to it

    def _fill_lanes(self) -> None:
        """Start claimable trials while a lane is free."""
        while self.warm.settled and not self.leaving.why:
            free = self.groups.free([lane.number for lane in self._busy])
            if free is None:
                return
            self.fitting.passed_over.clear()
            attempt = None
            with contextlib.suppress(OSError):
                if self.leaving.is_refused():
                    return
                attempt = claims.next_attempt(
                    self.paths,
                    self.me,
                    self.groups.allocation(free),
                    self.spending,
                    self.fitting.fits,
                    self.outlook,
                    self.notices.heard,
                )
            if attempt is None:
                if self.fitting.passed_over and not self._busy:
                    self.leaving.why = "time"  # a fresh allocation does it better
                return
            self._busy.append(self._begin(attempt, free))

    def _begin(self, attempt: AttemptPaths, lane: int) -> Lane:
        self._note("claimed", trial=attempt.trial, attempt=attempt.number, lane=lane, sync=True)
        oom_kills, slots = self._oom_kills, self.experiment.resources.slots_per_trial
        opened, mine = self.opened, self.groups.allocation(lane)
        try:
            own = time_left.of_attempt(mine, attempt, slots)
            claimed = opened.trial(attempt.trial).attempt(attempt.number)
            left_s = within(START_S, self.notices.heard)
            same = insist(lambda: identity(opened, claimed), left_s)
        except OSError as error:
            return Lane(lane, attempt, None, oom_kills, f"{attempt.claim}: {error}")
        try:
            place = self.groups.place(lane)
            plan = launch(self.experiment, self.site, self.paths, attempt, own, place, same)
        except HpcdetError as error:
            return Lane(lane, attempt, None, oom_kills, f"{error.where}: {error.what}")
        step = self._start(plan, attempt)
        if isinstance(step, str):
            return Lane(lane, attempt, None, oom_kills, step)
        self._note("launched", argv=list(plan.argv), pids=step.pids)
        begun = Lane(lane, attempt, step, oom_kills)
        if own.end_at is not None and own is not mine:
            limits = self.site.limits
            begun.end_at, begun.kill_wait_s = own.end_at, limits.kill_wait_s
            begun.lead_s = min(limits.signal_lead_s, (own.end_at - time.time()) / 2)
        return begun

    def _start(self, plan: Launch, attempt: AttemptPaths) -> RunningStep | str:
        """Start and return the step; an error message if launcher, Python or scratch is missing."""
        try:
            scratch.prepare(self.paths)
        except HpcdetError as error:
            return f"{error.where}: {error.what}"
        try:
            said, code = attempt.launcher_log, self.opened.code
            return self.warm.fork(plan, said, code) or start(plan, said, code)
        except OSError as error:
            with contextlib.suppress(OSError):
                attempt.launcher_log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with files.append_log(attempt.launcher_log) as log:
                    log.write(f"{plan.argv[0]}: {error}\n".encode())
            return f"{plan.argv[0]}: {error}"

    @property
    def _oom_kills(self) -> int:
        """Processes that kernels have killed for memory: on this node, and of forked ranks."""
        return oom_kills.of_machine() + self.warm.oom_kills

    def _ends(self) -> Iterator[tuple[End, Lane]]:
        """Yield the ends of attempts that were judged since the last call, with their lanes."""
        for lane in list(self._busy):
            if lane.judged is None and not lane.running():
                # it may ask the scheduler, which may not answer for long
                lane.judged = self._judges.submit(self._judge, lane)
                lane.judged.add_done_callback(lambda _: self.notices.wake())
            elif lane.judged is not None and lane.judged.done():
                self._busy.remove(lane)
                end = lane.judged.result()
                self._journal_end(lane.attempt, end)
                self.fitting.learn(lane.attempt)
                if not self.notices.heard():
                    self.crank.turn(now=True)  # it may be what the searcher has been waiting for
                yield end, lane

    def _tell(self) -> None:
        """End canceled trials; have all others save and leave when the allocation ends.

        Those that have fewer nodes than they may have also leave once the others are free.
        """
        for lane in self._busy:
            if lane.at_work and self.cancels.has(lane.attempt.trial):
                lane.end()
            elif (
                lane.at_work
                and self.regrowth
                and self.regrowth.is_time(self.paths.trial(lane.attempt.trial))
            ):
                self.leaving.resize()
        notice = self.leaving.asks
        told = [lane.tell() for lane in self._busy if notice]
        if any(told):
            self._note_notice(notice)

    def _note_notice(self, signal: str) -> None:
        if not self._noted:
            self._noted = True
            self._note("notice", signal=signal, sync=True)

    def _judge(self, lane: Lane) -> End:
        """Write and return the end of an attempt. Runs in a thread of its own."""
        attempt = lane.attempt
        # as things are when it ends, not when its last checkpoint has been copied
        oom = self._oom_kills > lane.oom_kills
        self.notices.look()
        noticed = bool(self.leaving.notice or lane.is_used_up)
        inside = opening.of(self.site).inside
        early = max(inside.early_s, LOOK_S)
        time_up = lane.is_used_up or self.remaining.left_s < self.remaining.lead_s + early
        stands = close_attempt.spoke(lane) or inside.stands(self.allocation)
        reclaims = self.site.view(self.experiment.resources.resource_pool).bounds.preemptible
        resized = self.leaving.why == regrowth.WHY
        then = Circumstances(noticed, time_up, oom, stands, inside.says, reclaims, resized)
        drain_staging.drain(
            self.paths, self.experiment, self.site, attempt, self.leaving.left_to_drain
        )
        nodes, by = self.groups.allocation(lane.number).nodes, self.me.name
        policies = self.experiment.log_policies or ()
        return insist(
            lambda: close_attempt.conclude(self.paths, lane, then, nodes, by, policies),
            self.leaving.left_to_drain,
        )

    def _journal_end(self, attempt: AttemptPaths, end: End | None) -> None:
        if end is not None:
            self._note(
                "ended",
                sync=True,
                trial=attempt.trial,
                attempt=attempt.number,
                reason=end.reason,
                exit_code=end.exit_code,
            )

    def _note(self, kind: str, *, sync: bool = False, **fields: Any) -> None:
        """Add a record for users to the journal; an error here must not end a running trial."""
        with contextlib.suppress(OSError):
            self.log.append(kind, sync=sync, **fields)
