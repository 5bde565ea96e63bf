"""Delivery of commands to experiments: impossible ones are refused, others take effect."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdet.cli.frame.bulk import each
from hpcdet.cli.frame.ids import called
from hpcdet.cli.frame.output import Output
from hpcdet.cli.frame.progress import busy
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.observe import follow
from hpcdet.cli.request.take_turn import CommandCrank, cranks
from hpcdet.control.leader.leader import Holder
from hpcdet.control.requests import commands
from hpcdet.errors import HpcdetError, UsageError
from hpcdet.policy import named_policy
from hpcdet.read.experiment import changes, gather, states
from hpcdet.read.lookup import find
from hpcdet.read.views.views import StatusView
from hpcdet.store.config import overrides, resolved_config
from hpcdet.store.decisions import lease
from hpcdet.store.decisions.lease import Beat, Term
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import journal

_SEE_OFF_S = 10.0
_GO_ON = ("release", "resume", "retry")
"""Verbs after which something is trained: not without the policy that was submitted."""


@dataclass(frozen=True)
class Wish:
    """A command to one experiment or trial.

    Attributes:
        arguments: those of the command, plain JSON.
        says: its effect, for people.
        done: the message if it is so already; then no command is recorded.
        reopens: True if the command reopens an experiment that has ended.
        counts: True if the command depends on all earlier commands; if another one was recorded
            meanwhile, it is computed again.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    says: str = ""
    done: str = ""
    reopens: bool = False
    counts: bool = False


Look = Callable[[find.Reference, gather.Gathered], Wish]


def state_of(found: find.Reference, gathered: gather.Gathered) -> str:
    """Return the state of the experiment or of the named trial; "" if there is no such trial."""
    state, _ = states.experiment_state(gathered)
    if not found.trial:
        return state
    over = state if state in states.ENDED else ""
    trials = {trial.number: trial for trial in gathered.trials}
    return states.trial_state(trials[found.trial], over) if found.trial in trials else ""


def wrong_state(verb: str, found: find.Reference, state: str, hint: str = "") -> UsageError:
    """Return the error for a verb that is impossible in this state."""
    return UsageError(f"cannot {verb}: it is {state}", where=str(found), hint=hint)


def can_run(gathered: gather.Gathered, wanted: Mapping[str, Any]) -> None:
    """Check that the experiment can run at its site with these changes.

    Raises:
        ConfigError: it never can.
    """
    from hpcdet.config.load import changing
    from hpcdet.jobs.checks import site_checks
    from hpcdet.jobs.script import requirements
    from hpcdet.site_files.load_site import from_resolved

    effective = changes.effective(gathered)
    changed = overrides.lay(effective, wanted)
    changing.only_longer(effective, wanted)
    changing.fits(changed)
    site = from_resolved(gathered.paths.site)
    required = requirements.of_experiment(changed, gathered.paths, site)
    root = gathered.paths.root.parent
    site_checks.preflight(changed, site, root, submits=False, required=required)


def refuse_imported(gathered: gather.Gathered) -> None:
    """Raise UsageError for an experiment that another platform has trained: it has no code here."""
    if platform := gathered.imported.get("from"):
        raise UsageError(
            f"it was imported from {platform}, and nothing of it can be trained here",
            where=gathered.id,
            hint="submit its config and code anew: hpcdet import determined-config FILE",
        )


def can_sign(gathered: gather.Gathered) -> None:
    """Check that an experiment under a policy has the keys without which no node goes on.

    Raises:
        PolicyRefused: P10: it has not.
    """
    if (governance := gathered.config.governance) is not None:
        from hpcdet.policy.keys import run_keys  # most experiments have no policy

        run_keys.refuse_lost(gathered.paths, governance)


def ask_each(
    out: Output,
    verb: commands.Verb,
    ids: Sequence[str],
    dry_run: bool,
    look: Look,
    goal: frozenset[str] = frozenset(),
    wait: bool = False,
) -> None:
    """Record a command for each, then turn the crank so that it takes effect without workers.

    Args:
        look: returns the command to each; raises if it is impossible.
        goal: states of the experiments or trials to wait for.
    """
    asked: dict[ExperimentPaths, list[int]] = {}

    def act(found: find.Reference) -> str:
        number = 0
        while not number:
            if verb in _GO_ON:
                refuse_imported(gather.gather(found.paths))
                named_policy.require(found.paths, resolved_config.load(found.paths.config))
            follows = commands.following(found.paths)
            wish = look(found, gather.gather(found.paths))
            says = f": {wish.says}" if wish.says else ""
            if wish.done:
                asked.setdefault(found.paths, []).append(found.trial)
                return wish.done
            if dry_run:
                return f"would {verb}{says}"
            number = commands.ask(
                found.paths,
                verb,
                found.trial,
                reopen=wish.reopens,
                number=follows if wish.counts else 0,
                **wish.arguments,
            )
        asked.setdefault(found.paths, []).append(found.trial)
        if verb in ("resume", "retry"):
            turn_until_somebody_works(found.paths)
        else:
            _turn_once(found.paths)
        if refused := changes.refusals(gather.gather(found.paths)).get(number):
            raise UsageError(f"command {number} was refused: {refused}", where=str(found))
        return f"asked (command {number}){says}"

    each(out, verb, ids, act, dry_run)
    if verb == "cancel" and not wait:
        _see_off([paths for paths, numbers in asked.items() if 0 in numbers])
    if not wait or dry_run or not asked:
        return

    def done(item: StatusView) -> bool:
        states = item.states()
        wanted = next(numbers for paths, numbers in asked.items() if paths.id == item.id)
        return all(states[number] in goal for number in wanted)

    waited = list(asked)
    with (
        follow.following([called(paths) for paths in waited]),
        cranks(waited, "wait") as all_of_them,
    ):
        follow.until(waited, done, turn=lambda: _turn_all(all_of_them))


def _see_off(experiments: list[ExperimentPaths]) -> None:
    """Turn the crank for experiments without workers until they are closed.

    After a time limit print which experiments are still open and the command that closes them.
    """
    alone = [paths for paths in experiments if _left_alone(paths)]
    limit = time.monotonic() + _SEE_OFF_S
    try:
        with cranks(alone, "command") as all_of_them:
            while (alone := list(filter(_left_alone, alone))) and time.monotonic() < limit:
                follow.pause(0.2)
                _turn_all(all_of_them)
    except (HpcdetError, OSError) as error:
        settings().warn(f"command recorded, but not fully carried out yet: {error}")
        return
    for paths in alone:
        settings().note(
            f"{paths.id} ends once its jobs have left the queue; to check: "
            f"hpcdet searcher run {called(paths)}"
        )


def _left_alone(paths: ExperimentPaths) -> bool:
    """True if the experiment is stopping and no worker lives that would close it."""
    gathered = gather.gather(paths)
    stopping = states.experiment_state(gathered)[0] == "STOPPING"
    return stopping and not any(map(states.lives, gathered.workers))


def _turn_all(all_of_them: list[CommandCrank]) -> None:
    for crank in all_of_them:
        crank.turn_if_due()


def _turn_once(paths: ExperimentPaths) -> None:
    """Make a turn so that a recorded command takes effect; an error only delays it."""
    try:
        with CommandCrank(paths, "command") as crank:
            turn = crank.turn()
            if turn.blind:
                settings().warn(
                    f"{paths.id}: recorded, but not all of it can be done here: {turn.blind}"
                )
    except (HpcdetError, OSError) as error:
        settings().warn(f"command recorded, but not carried out yet: {error}")


def turn_until_somebody_works(paths: ExperimentPaths) -> None:
    """Turn the crank until a worker lives or a job waits that will do so from then on.

    A job that was just cancelled, or a worker that was killed, counts as gone only after a
    second look at the queue, and the lease of a killed worker must expire first.
    """
    before = lease.last(paths)
    try:
        with CommandCrank(paths, "command") as crank:
            held = crank.turn().held
            if _somebody_works(crank, before):
                return
            site = crank.holder.hands.site
            patience_s = 4 * site.limits.poll_min_s + 30 + (0 if held else site.lease_ttl_s)
            limit = time.monotonic() + patience_s
            with busy("waiting until the former jobs have left the queue"):
                while not _somebody_works(crank, before) and time.monotonic() < limit:
                    follow.pause(0.2)
                    crank.turn_if_due()
    except (HpcdetError, OSError) as error:
        settings().warn(f"command recorded, but not carried out yet: {error}")


def _somebody_works(crank: CommandCrank, before: tuple[Term, Beat | None] | None) -> bool:
    """True if a worker lives or a job waits that will start, or nothing is wanted of any.

    Until all commands are obeyed, another holder than that of ``before`` has to live: one that has
    just died, as the script of a canceled job may, leaves a state that says nothing of them.
    """
    gathered = gather.gather(crank.paths)
    if {number for number, _ in gathered.commands} - changes.refusals(gathered).keys():
        return lease.attended(crank.paths, before)
    if gathered.closed is not None or states.experiment_state(gathered)[0] == "PAUSED":
        return True
    watch = crank.holder.watch
    hopeless = {row.job for row in watch.scheduler.hopeless}
    jobs = {one.number: one.submitted.job for one in gathered.jobs if one.submitted}
    staying = any(
        _lives(worker, crank.holder)
        and jobs.get(worker.paths.submission) not in hopeless
        and all(line["kind"] != "notice" for line in journal.read(worker.paths.journal))
        for worker in gathered.workers
    )
    begun = {worker.paths.submission for worker in gathered.workers}
    fresh = any(job and n not in begun and job not in hopeless for n, job in jobs.items())
    return staying or fresh or any(row.job not in hopeless for row in watch.scheduler.waiting())


def _lives(worker: gather.GatheredWorker, holder: Holder) -> bool:
    """True if a worker has not left, by the queue if this crank holds the lease, else by beats."""
    if not holder.lease.term:
        return states.lives(worker)
    return worker.end is None and worker.paths.name not in holder.watch.suspected
