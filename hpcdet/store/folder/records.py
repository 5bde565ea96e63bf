"""The records in the JSON files of an experiment's folder, as frozen types.

The names of numbers end in their unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from hpcdet.store.fs.json_record import JsonRecord, value
from hpcdet.units import Length

Reason = Literal[
    "completed", "preempted", "walltime", "paused", "stopped", "user_error", "oom", "node_fail",
    "lost", "canceled", "launch_failed", "unproven", "refused", "released",
    "resized",
]  # fmt: skip
"""Why an attempt ended. ``released``: its worker gave the claim back before anything ran, and it
counts for nothing. ``launch_failed``: it never reached its first step, and the cause is
the place, not the code, until it has failed so on a second node. ``unproven``: its ranks could not
make sure that they spoke to each other, and to nobody else. ``refused``: a node did not attest what
the policy requires, and nothing of the user's was touched there. ``resized``: it had fewer nodes
than it may have, and left to go on with all of them."""

NO_FAULT: frozenset[Reason] = frozenset({
    "preempted", "walltime", "node_fail", "lost", "launch_failed", "unproven", "refused",
    "canceled", "resized",
})  # fmt: skip
"""Ends after which the trial simply goes on from its latest checkpoint."""

ExperimentState = Literal[
    "PENDING", "RUNNING", "PAUSED", "STOPPING", "COMPLETED", "CANCELED", "ERROR"
]
TrialState = Literal[ExperimentState, "STOPPED"]
"""``STOPPED``: the search ended the trial before its length."""


@dataclass(frozen=True)
class Trial(JsonRecord):
    """``trial.json``: the definition of a trial.

    Attributes:
        seed: -1 if it is not known, of an imported experiment.
        parent: what it begins from (``store.trials.parents``); "": from nothing.
        origin: of the checkpoint that it was given: ``checkpoint`` and ``root`` (its parent's),
            ``name`` (here), ``digest``, ``units``; empty without a parent, or if that had none.
    """

    number: int
    params: dict[str, Any]
    seed: int
    term: int = 0
    parent: str = ""
    created_at: str = ""
    origin: dict[str, Any] = field(default_factory=dict)


Action = Literal["run", "pause", "stop", "kill", "fail"]


@dataclass(frozen=True)
class Control(JsonRecord):
    """``control/0001.json``: the lease holder's order to a trial, from now on.

    Attributes:
        action: ``run`` (train until ``until``), ``pause`` (save, leave, keep), ``stop`` (the
            searcher has seen enough: save, end well), ``kill`` (canceled by a user: save,
            end), ``fail`` (given up: it is not claimed again).
        until: length at which to end, for ``run``; None keeps the one before, at first the
            config's.
        attempts: attempts up to this number are allowed after a failure of the user's code;
            0 leaves what was allowed before.
        since: only workers of this submission or a later one may claim the trial.
        rewinds: what a user made the trial begin again from, in their order: ``[name, attempt]``,
            the checkpoint and the first attempt that goes on from it.
        now: with ``kill``, do not save first.
        heard: the highest rung, in the search's unit, of which the report was decided upon; 0
            where no trial waits for that (``searcher.wait_at_rungs_s``).
        why: shown to people.
    """

    action: Action
    until: Length | None = None
    attempts: int = 0
    why: str = ""
    since: int = 0
    rewinds: list[list[Any]] = field(default_factory=list)
    now: bool = False
    heard: int = 0
    term: int = 0
    at: str = ""


@dataclass(frozen=True)
class Claim(JsonRecord):
    """``claim.json`` of an attempt: the worker that runs it.

    ``worker`` is the name of the worker's folder (``0001-0003.0``). ``reserved_slot_s``: what the
    attempt may cost at most, in slot-seconds from ``at``; None without limits, 0 if it is only
    limited how many run at once.
    """

    worker: str
    host: str
    job: str = ""
    nodes: list[str] = field(default_factory=list)
    at: str = ""
    reserved_slot_s: float | None = None


@dataclass(frozen=True)
class Verdict(JsonRecord):
    """``verdict.json``: the attempt's own account of its end. The exit code is only a hint.

    Attributes:
        verdict: ``done`` (nothing left to do until a new control), ``resume`` (go on from the
            latest checkpoint), ``fail`` (an error in user code), ``norestart`` (trying again
            cannot help: ``InvalidHP``, no checkpoint that can be gone on from, or a policy that
            refuses the training).
        cause: why it ended now.
        batches: batches trained by the trial so far.
        until: the length that was asked for, when it ended because that was reached. Code that
            ends by itself before leaves None.
        error: the last line of the traceback, for ``fail``, ``norestart`` and ``unproven``; all
            that governance says, with the repair; what a node does not attest, for ``refused``.
        unrecoverable: with ``norestart``: the trial's checkpoints or its policy are to blame, and
            not its hyperparameters.
        node: the one that is ``refused``; "" otherwise.
    """

    verdict: Literal["done", "resume", "fail", "norestart"]
    cause: Literal[
        "completed", "signal", "walltime", "paused", "stopped", "unproven", "refused", "error"
    ]
    batches: int = 0
    until: Length | None = None
    checkpoint: str = ""
    digest: str = ""
    error: str = ""
    unrecoverable: bool = False
    node: str = ""
    at: str = ""


@dataclass(frozen=True)
class End(JsonRecord):
    """``end.json`` of an attempt: why it is over, by its worker or the finder of its loss.

    Attributes:
        progressed: the next attempt begins further than this one did (``store.trials.progress``).
        closed_by: name of the worker, or ``term N``.
        first_step: it reached its first step, so that neither place nor launch is to blame.
        policies: names of the ``log_policies`` that fit its logs.
        final: one of them says that the trial is not tried again after a failure.
        excludes: one of them says that its nodes are not used again.
    """

    reason: Reason
    exit_code: int | None = None
    progressed: bool = False
    error: str = ""
    nodes: list[str] = field(default_factory=list)
    closed_by: str = ""
    at: str = ""
    first_step: bool = False
    policies: list[str] = field(default_factory=list)
    final: bool = False
    excludes: bool = False


@dataclass(frozen=True)
class WorkerClaim(JsonRecord):
    """``claim.json`` of a worker: the allocation it runs in.

    ``counted``: the scheduler said how often the task was started before; else this is the first
    place that was free.
    """

    job: str
    host: str
    pid: int
    nodes: list[str] = field(default_factory=list)
    restart: int = 0
    end_at: str = ""
    at: str = ""
    counted: bool = True


@dataclass(frozen=True)
class WorkerEnd(JsonRecord):
    """``end.json`` of a worker.

    ``why``: ``idle`` (nothing left to take), ``time`` (too little left), ``signal`` (its allocation
    ends, or has lost a node), ``bad_node`` (two launches in a row failed, or the node is
    ``refused``), ``avoided`` (the scheduler gave it a node that it was to avoid, and cannot leave
    out), ``closed`` (the experiment is over), ``spent`` (its task has come back too often without
    getting anywhere), ``resized`` (a job with more nodes takes its place), ``lost``.
    ``returns``: its batch script was asked to requeue the task. ``refused``: by node, what it does
    not attest that the policy requires.
    """

    why: str
    closed_by: str = ""
    at: str = ""
    returns: bool = False
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Final(JsonRecord):
    """``final.json`` of a worker: its batch script does not requeue the task.

    ``code``: the worker's exit code, as a shell shows it.
    """

    code: int
    at: str = ""


@dataclass(frozen=True)
class Intent(JsonRecord):
    """``jobs/0001.json``: a submission about to be made, recorded before it is.

    Attributes:
        name: the scheduler's job name, ``EXP-N``.
        tag: ``hpcdet:EXP:N-NONCE``, carried in the job's comment; finds the job again.
        tasks: width of the array; index 0 to tasks - 1.
        throttle: how many may run at once.
        exclude: nodes not to use.
        hold: prepared only; a person gives the script to the scheduler by hand.
        overrides: what users have changed of the config by then, dotted key to value
            (``store.config.overrides``); it holds for the script, its workers and their ranks.
        held: in the queue, but kept from starting until it is released.
        after: ids of jobs that have to end well before its tasks start.
        host: where it was intended; a scheduler of one machine knows only its own jobs.
        spares: how many of the tasks are there to replace others that end.
        behind: tasks that have to end, in whatever way, before its own start: those of workers
            that left for more nodes, which these are to have, too, and jobs of other experiments
            that still use up a limit of the site.
        watches: of a sentinel: the job after whose end it runs, or several with ``:`` between.
    """

    number: int
    name: str
    tag: str
    tasks: int
    throttle: int
    term: int
    exclude: list[str] = field(default_factory=list)
    script: str = ""
    hold: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)
    at: str = ""
    held: bool = False
    after: list[str] = field(default_factory=list)
    host: str = ""
    spares: int = 0
    behind: list[str] = field(default_factory=list)
    watches: str = ""

    @property
    def is_spare(self) -> bool:
        """True of a single job that is to take the place of the one that it is behind."""
        return self.spares == self.tasks


@dataclass(frozen=True)
class Submitted(JsonRecord):
    """``jobs/0001.submitted.json``: the result of an intent.

    ``job`` is empty and ``error`` says why when the scheduler refused it for good.
    """

    job: str
    scheduler: str = ""
    error: str = ""
    at: str = ""


Verb = Literal[
    "cancel", "pause", "resume", "retry", "tag", "note", "describe", "set", "hold", "release",
    "after", "follow",
]  # fmt: skip


Occasion = Literal["end", "failure", "stuck"]
"""What people are told of (``notify.on``)."""
Channel = Literal["webhook", "email"]
"""By what a notice of it is sent."""


@dataclass(frozen=True)
class Stuck(JsonRecord):
    """``jobs/0001.stuck.json``: the sentinel found trials waiting and no job left to run them.

    ``next`` is the command that repairs it.
    """

    why: str
    next: str
    at: str = ""


@dataclass(frozen=True)
class Command(JsonRecord):
    """``commands/0001.json``: a user's command to an experiment or to one of its trials.

    ``trial`` 0 means all. ``describe``: its arguments are the new values of ``overrides.ABOUT``.
    ``after``: begin once ``experiments`` (folders, relative to this one)
    and ``jobs`` ended well. ``follow``: of another experiment, whose folder is ``path``, that is
    to be woken at the end of this one.
    """

    verb: Verb
    trial: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)
    user: str = ""
    at: str = ""


@dataclass(frozen=True)
class Best(JsonRecord):
    """``best.json``: the best validation that the holder of the lease knows.

    Attributes:
        metric: the searcher's, as ``number`` gives it.
        length: of the trial's training then.
    """

    trial: int
    metric: float | str
    length: Length
    at: str = ""

    def beats(self, other: Best | None, smaller_is_better: bool) -> bool:
        """True if it is better than another one; NaN and infinities never are."""
        mine = value(self.metric)
        theirs = math.nan if other is None else value(other.metric)
        if not (math.isfinite(mine) and math.isfinite(theirs)):
            return math.isfinite(mine)
        return mine < theirs if smaller_is_better else mine > theirs


@dataclass(frozen=True)
class Closed(JsonRecord):
    """``closed.json``: the experiment is over, unless a user retries failed trials in it."""

    state: Literal["COMPLETED", "CANCELED", "ERROR"]
    why: str = ""
    term: int = 0
    at: str = ""


@dataclass(frozen=True)
class Revealed(JsonRecord):
    """``revealed.json``: the twin key was shown; nothing is trained under it any more.

    ``of``: the experiment that it was asked of; those with the same key have the same record.
    """

    of: str
    by: str = ""
    at: str = ""


@dataclass(frozen=True)
class Reopened(JsonRecord):
    """``reopened-1.json``: a user has reopened a closed experiment to retry failed trials.

    ``command`` is the number of the command that names them.
    """

    command: int
    user: str = ""
    at: str = ""


@dataclass(frozen=True)
class ScratchMark(JsonRecord):
    """``hpcdet-experiment.json`` in a folder on scratch: the experiment that it belongs to.

    Attributes:
        experiment: path of the experiment's folder.
        identity: SHA-256 of its ``provenance.json``, which stays when it is moved.
    """

    experiment: str
    identity: str
    at: str = ""
