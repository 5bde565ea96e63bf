"""Doing what users have asked for, in the order in which they did."""

from __future__ import annotations

from hpcdet.config import changing
from hpcdet.control.holder import Holder
from hpcdet.errors import ConfigError
from hpcdet.store import trials
from hpcdet.store.layout import numbers
from hpcdet.store.records import Command


def obey(holder: Holder) -> None:
    """Take the user's commands, in their order."""
    for seq in numbers(holder.paths.commands, ".json"):
        if seq <= holder.decided.commands:
            continue
        command = Command.read(holder.paths.command(seq))
        if command is None:
            return
        refused = _refusal(holder, command)
        arguments = command.arguments
        try:
            arguments = changing.of_command(command.verb, arguments)
        except ConfigError as error:
            refused = refused or str(error)
        if command.verb == "retry" and not refused:
            _retry(holder, command.trial)  # before the command is done with; twice is harmless
        holder.record(
            "command",
            seq=seq,
            verb=command.verb,
            trial=command.trial,
            arguments=arguments,
            refused=refused,
            submissions=max(holder.paths.submissions(), default=0),
        )
        holder.actions.append(f"obey command {seq}: {command.verb}")
        if refused:
            continue
        if command.verb in ("resume", "retry"):
            holder.throttled_until = 0.0
            holder.unheeded_since = None
            if holder.decided.broken:
                holder.decided.ask_again()
                holder.settle()


def _refusal(holder: Holder, command: Command) -> str:
    """Why a command cannot be obeyed; "" if it can."""
    if command.trial and command.trial not in holder.decided.plans:
        return f"there is no trial {command.trial}"
    if command.verb == "retry" and holder.decided.canceled:
        return "the experiment has been canceled"
    return ""


def _retry(holder: Holder, number: int) -> None:
    """Give failed trials another chance, with all their restarts."""
    for plan in list(holder.decided.plans.values()):
        wanted = plan.number == number or (not number and plan.failed)
        if not wanted or not (plan.failed or plan.killed):
            continue
        attempts = len(trials.claimed(holder.paths.trial(plan.number)))
        holder.record(
            "retry", trial=plan.number, attempts=attempts + 1, base=attempts, why="asked for"
        )
