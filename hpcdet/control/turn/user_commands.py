"""The execution of users' commands, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcdet.config.load import changing
from hpcdet.control.leader.decided_state import Decided
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.trial_plan import TrialPlan
from hpcdet.errors import ConfigError
from hpcdet.jobs.script import requirements
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.store.config import overrides
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Command, Reason
from hpcdet.store.fs import packed
from hpcdet.store.trials import standing as trials


def obey(holder: Holder) -> None:
    """Obey the users' new commands, in their order."""
    for seq, command in asked(holder.paths, holder.decided):
        _obey(holder, seq, command)


def asked(paths: ExperimentPaths, decided: Decided) -> Iterator[tuple[int, Command]]:
    """Yield the commands that have not been obeyed, up to one that cannot be read yet."""
    for seq in packed.numbers(paths.commands, ".json"):
        if seq <= decided.user.commands:
            continue
        command = Command.read(paths.command(seq))
        if command is None:
            return
        yield seq, command


def _obey(holder: Holder, seq: int, command: Command) -> None:
    refused = _refusal(holder.paths, holder.decided, command)
    again = holder.decided.searcher.broken or holder.decided.aimless
    arguments: dict[str, Any] = command.arguments
    try:
        arguments = changing.of_command(command.verb, arguments)
        changed = overrides.asked(command.verb, arguments)
        changing.only_longer(holder.resolved, changed)
        if changed and holder.resolved.governance is not None:
            _refuse_undoing(holder, changed)
    except (ConfigError, GovernanceBroken) as error:
        refused = refused or str(error)
    chosen = [] if refused else _chosen(holder, command)
    if command.verb == "retry" and not refused and not chosen:
        refused = "none of its trials failed" + (" so" if "reasons" in arguments else "")
    holder.record(
        "command",
        seq=seq,
        verb=command.verb,
        trial=command.trial,
        arguments=arguments,
        refused=refused,
        submissions=max(holder.paths.submissions(), default=0),
        **({} if refused else _consequences(holder, command, arguments, chosen)),
    )
    why = f", refused: {refused}" if refused else ""
    holder.actions.append(f"obey command {seq}: {command.verb}{why}")
    if not refused and command.verb in ("resume", "retry"):
        holder.pace.throttled_until, holder.pace.full_until = 0.0, {}
        holder.pace.unheeded_since = None
        for number in holder.decided.trials.open:  # whose controls are listed again
            holder.written.pop(("control", number), None)
        if again:
            holder.ask_again()


def _refuse_undoing(holder: Holder, changed: Mapping[str, Any]) -> None:
    """Refuse changes that take jobs away from the nodes that the policy requires.

    Raises:
        ConfigError: they do.
        GovernanceBroken: the policy cannot be read.
    """
    hands = holder.hands
    required = requirements.of_experiment(hands.resolved, holder.paths, hands.site)
    if required is not None:
        changed_config = overrides.lay(holder.resolved, changed)
        requirements.refuse_undoing(changed_config, hands.site, required)


def _refusal(paths: ExperimentPaths, decided: Decided, command: Command) -> str:
    """Return why a command cannot be obeyed; "" if it can."""
    if command.trial and command.trial not in decided.trials.plans:
        return f"there is no trial {command.trial}"
    if command.verb in ("retry", "resume", "pause") and decided.user.canceled:
        return "the experiment has been canceled"
    if command.verb == "resume" and command.arguments.get("from"):
        return _no_rewind(paths, decided, command)
    if command.verb == "resume" and command.trial:
        plan = decided.trials.plans[command.trial]
        if plan.searcher == "pause" and not plan.ended:
            return "the searcher paused the trial, and resumes it if it ranks well enough"
    return ""


def _no_rewind(paths: ExperimentPaths, decided: Decided, command: Command) -> str:
    """Return why a trial cannot begin again from an older checkpoint; "" if it can."""
    number = command.trial or command.arguments.get("from_trial", 0)
    plan = decided.trials.plans.get(number)
    if plan is None:
        return "it does not say which trial is to begin again from a checkpoint"
    trial = paths.trial(number)
    standing = trials.standing(trial)
    if plan.ended and not plan.failed:
        return f"trial {number} has ended"
    if standing.state not in ("paused", "failed"):
        return f"trial {number} is {standing.state}, not paused"
    if command.arguments["from"] not in trials.checkpoints(trial):
        return f"trial {number} has no checkpoint {command.arguments['from']}"
    return ""


def _chosen(holder: Holder, command: Command) -> list[TrialPlan]:
    """Return the trials that a command makes go on."""
    if command.verb not in ("resume", "retry"):
        return []
    plans = [p for p in holder.decided.trials.plans.values() if command.trial in (0, p.number)]
    if command.verb != "retry":
        return [plan for plan in plans if not plan.ended or plan.failed]
    failed = [plan for plan in plans if plan.failed or (command.trial and plan.killed)]
    wanted = command.arguments.get("reasons")
    return [p for p in failed if wanted is None or _last_reason(holder, p) in wanted]


def _last_reason(holder: Holder, plan: TrialPlan) -> Reason | None:
    holder.stay()
    ended = holder.sight.trial(plan.number).files.ended
    return ended[-1][1].reason if ended else None


def _consequences(
    holder: Holder, command: Command, arguments: Mapping[str, Any], chosen: list[TrialPlan]
) -> dict[str, Any]:
    """Return a command's consequences for single trials, so that one record holds them all.

    Returns:
        ``trials`` that want new allocations, ``again`` (trial, attempts so far) of those that
        get another chance with all their restarts, ``rewinds`` (trial, checkpoint, the first
        attempt that goes on from it).
    """
    made: dict[int, int] = {}
    for plan in chosen:
        holder.stay()
        made[plan.number] = len(trials.claimed(holder.paths.trial(plan.number)))
    found: dict[str, Any] = {}
    if arguments.get("set"):
        found["trials"] = list(made)
    revived = chosen if command.verb == "retry" else []
    if command.verb == "resume" and arguments.get("from"):
        number = command.trial or arguments["from_trial"]
        revived = [plan for plan in chosen if plan.number == number]
        found["rewinds"] = [[number, arguments["from"], made[number] + 1]]
    if revived := [plan for plan in revived if plan.failed or plan.killed]:
        found["again"] = [[plan.number, made[plan.number]] for plan in revived]
    return found
