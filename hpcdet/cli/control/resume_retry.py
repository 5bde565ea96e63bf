"""``resume`` and ``retry``: continuing paused or failed experiments and trials."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hpcdet.cli.artefacts import named_checkpoints, reading
from hpcdet.cli.frame.bulk import ActionView
from hpcdet.cli.frame.ids import called, ids_argument
from hpcdet.cli.frame.output import Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.request import extending
from hpcdet.cli.request.send_commands import (
    Wish,
    ask_each,
    can_run,
    can_sign,
    state_of,
    wrong_state,
)
from hpcdet.config.load import changing
from hpcdet.errors import IntegrityError, UsageError
from hpcdet.read.experiment import changes, gather, states
from hpcdet.read.lookup import find, source_checkpoint
from hpcdet.read.views import checkpoints
from hpcdet.store.config import overrides
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Reason
from hpcdet.store.trials import standing

MEMORY = "resources.memory_per_slot"
EXCLUDED = "resources.exclude_nodes"

_ENDS: dict[str, tuple[Reason, ...]] = {
    "FAILED": ("user_error", "launch_failed"),
    "OOM": ("oom",),
    "TIMEOUT": ("walltime",),
    "NODE_FAIL": ("node_fail",),
    "PREEMPTED": ("preempted",),
    "LOST": ("lost",),
}
"""The scheduler's words for how the last attempt of a failed trial ended."""


@click.command("resume", short_help="Go on with what was paused.")
@ids_argument()
@click.option(
    "--from",
    "from_",
    metavar="CKPT",
    help="An older checkpoint of the trial: its name, path or step, or @best.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key that does not affect results (repeatable).",
)
@click.option("--time", metavar="TIME", help="Walltime of the jobs from now on: 2h, 12:00:00.")
@extending.options
@click.option(
    "--verify", is_flag=True, help="Read the checkpoints first; exit 9 if none is intact."
)
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be done.")
@output("resume", ActionView)
def resume_command(
    out: Output,
    ids: Sequence[str],
    from_: str | None,
    sets: Sequence[str],
    time: str | None,
    more_trials: int | None,
    longer: str | None,
    verify: bool,
    dry_run: bool,
) -> None:
    """Go on with paused experiments or trials (ID/3), from their latest checkpoints.

    A trial of a paused experiment goes on alone; the others stay paused.

    \b
    Examples: hpcdet resume digits-7f3a --time 12h --verify
              hpcdet resume digits-7f3a --more-trials 16
              hpcdet resume digits-7f3a/3 --from @best
    """
    asked = changing.changes([*sets, *([f"resources.walltime_s={time}"] if time else [])])

    def look(found: find.Reference, gathered: gather.Gathered) -> Wish:
        wanted = {**asked, **extending.wanted(gathered, more_trials, longer)}
        of_search = not overrides.FURTHER.isdisjoint(wanted)
        goes_on = extending.further(gathered, wanted)
        if of_search and found.trial:
            raise UsageError("only a whole search can be extended, not one trial", where=str(found))
        extending.possible(gathered, wanted)
        state = _may_resume(found, gathered, bool(from_), goes_on)
        if state in ("RUNNING", "PENDING"):
            if wanted or from_:
                hint = (
                    f"hpcdet set {called(found)} ..."
                    if of_search
                    else f"hpcdet pause {called(found)} --wait"
                )
                raise wrong_state("resume", found, f"{state}, not paused", hint)
            if found.trial:
                return Wish(done=f"{state} already")
        can_sign(gathered)
        arguments: dict[str, Any] = {}
        says = [_also_paused(found, gathered)]
        if wanted:
            can_run(gathered, wanted)
            arguments["set"] = wanted
            says += changes.assigned(wanted)
        if from_:
            number = found.trial or _only_trial(found, gathered)
            _, named = named_checkpoints.own_name(from_, found.paths, number)
            name = source_checkpoint.checkpoint(gathered, number, named)
            arguments |= {"from": name, "from_trial": number}
            says.append(f"trial {number} from {arguments['from']}")
        if verify:
            says += _verify(found, gathered, arguments)
        for loss in checkpoints.purged(gathered):
            settings().warn(loss)
        if not any(says):
            says.append("from the latest checkpoints")
        reopens, counts = bool(from_) or goes_on, bool(more_trials)
        return Wish(arguments, ", ".join(filter(None, says)), reopens=reopens, counts=counts)

    ask_each(out, "resume", ids, dry_run, look)


def _may_resume(found: find.Reference, gathered: gather.Gathered, back: bool, further: bool) -> str:
    """Return the state, if it can be resumed.

    ``back``: from an older checkpoint; ``further``: than the search was to go.
    """
    state = state_of(found, gathered)
    if further and state in ("COMPLETED", "ERROR"):
        return state
    if back and gathered.closed is not None and gathered.closed.state != "CANCELED":
        number = found.trial or _only_trial(found, gathered)
        state = state_of(find.Reference(found.paths, number), gathered)
    if state == "ERROR":
        if not back:
            raise wrong_state("resume", found, state, f"hpcdet retry {called(found)}")
    elif state in states.ENDED or state == "STOPPING":
        raise wrong_state("resume", found, state, _instead(found, gathered, state))
    experiment, _ = states.experiment_state(gathered)
    return "PAUSED" if experiment == "PAUSED" and state == "PENDING" else state


def _instead(found: find.Reference, gathered: gather.Gathered, state: str) -> str:
    """Return the hint on what can be done instead of resuming an ended experiment or trial."""
    if state == "STOPPING":
        return "wait until it has stopped"
    if state == "CANCELED":
        whole = gathered.closed is not None and gathered.closed.state == "CANCELED"
        return (
            "submit the config again to run it once more"
            if whole
            else f"hpcdet retry {called(found)}"
        )
    return "" if found.trial else "extend it with --longer LENGTH or --more-trials N"


def _also_paused(found: find.Reference, gathered: gather.Gathered) -> str:
    """Return the note that one trial of a paused experiment resumes alone; "" if not so."""
    experiment, _ = states.experiment_state(gathered)
    if found.trial and experiment == "PAUSED" and not states.stuck(gathered):
        return f"trial {found.trial} alone, the others stay paused"
    return ""


def _only_trial(found: find.Reference, gathered: gather.Gathered) -> int:
    numbers = [trial.number for trial in gathered.trials]
    if len(numbers) == 1:
        return numbers[0]
    what = f"--from is about one trial, and it has {len(numbers)}"
    raise UsageError(
        what,
        where=str(found),
        hint=f"hpcdet resume {called(find.Reference(found.paths, 1))} --from ...",
    )


def _verify(
    found: find.Reference, gathered: gather.Gathered, arguments: dict[str, Any]
) -> list[str]:
    """Read every byte of the checkpoints that the trials will go on from.

    Returns:
        What they are, one word for each trial.

    Raises:
        IntegrityError: a trial has checkpoints and none is whole.
    """
    chosen = arguments.get("from_trial") or found.trial
    names: dict[int, list[str]] = {}
    for trial in gathered.trials:
        idle = ("done", "stopped") if chosen else ("done", "stopped", "failed")
        if chosen in (0, trial.number) and trial.standing.state not in idle:
            line = standing.lineage(trial.paths)
            own = [name for name in standing.checkpoints(trial.paths) if name in line]
            names[trial.number] = [arguments["from"]] if arguments.get("from") else own[::-1]
    paths = gathered.paths
    folders = {n: _copies(paths.trial(n), own) for n, own in names.items()}
    every = [folder for own in folders.values() for folder in own]
    rows = {row.path: row for row in reading.run("verify", every, first=True)} if every else {}
    said = []
    for number, own_folders in folders.items():
        looked = [rows[str(folder)] for folder in own_folders if str(folder) in rows]
        damaged = [row for row in looked if row.state == "damaged"]
        for row in damaged:
            settings().warn(f"{row.path} is damaged: {row.error}")
        if damaged and len(damaged) == len(looked):
            raise IntegrityError(
                f"no undamaged checkpoint to continue from: {damaged[0].error}",
                where=f"{gathered.id}/{number}",
                hint="submit the experiment again to start from the beginning",
            )
        whole = [row for row in looked if row.state != "damaged"]
        said += [f"trial {number}: {Path(row.path).name} is whole" for row in whole[:1]]
    return said


def _copies(trial: TrialPaths, names: Sequence[str]) -> list[Path]:
    """Return every committed copy of these checkpoints, in their order."""
    copies = [place / name for name in names for place in trial.checkpoint_places]
    return [copy for copy in copies if (copy / standing.MANIFEST).is_file()]


@click.command("retry", short_help="Try failed trials again from their checkpoints.")
@ids_argument()
@click.option(
    "--state",
    "ends",
    multiple=True,
    metavar="WORD,...",
    help=f"Only those whose last attempt ended so: {', '.join(_ENDS)}.",
)
@click.option(
    "--mem", metavar="x2|8G", help="Memory per slot from now on: a multiple or an amount."
)
@click.option(
    "--exclude-node",
    "nodes",
    multiple=True,
    metavar="NODE",
    help="Do not use this node (repeatable).",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be done.")
@output("retry", ActionView)
def retry_command(
    out: Output,
    ids: Sequence[str],
    ends: Sequence[str],
    mem: str | None,
    nodes: Sequence[str],
    dry_run: bool,
) -> None:
    """Give trials that were given up another chance, with all their restarts.

    Only they are submitted again; --mem and --exclude-node hold for all jobs that are submitted
    from now on.

    \b
    Examples: hpcdet retry digits-7f3a/3
              hpcdet retry digits-7f3a --state OOM --mem x2 --exclude-node gpu17
    """
    reasons = _reasons(ends)
    memory: dict[ExperimentPaths, int | None] = {}
    """Before the first of its trials was looked at: twice as much is not twice for each."""

    def look(found: find.Reference, gathered: gather.Gathered) -> Wish:
        numbers = _failed(found, gathered, reasons)
        can_sign(gathered)
        wanted: dict[str, Any] = {}
        now = changes.effective(gathered).resources
        if mem:
            before = memory.setdefault(found.paths, now.memory_per_slot)
            wanted[MEMORY] = _memory(mem, before)
        if nodes:
            wanted[EXCLUDED] = changing.checked(
                EXCLUDED, list(dict.fromkeys([*now.exclude_nodes, *nodes]))
            )
        arguments: dict[str, Any] = {"reasons": reasons} if reasons else {}
        says = [f"trial{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"]
        if wanted:
            can_run(gathered, wanted)
            arguments["set"] = wanted
        if mem:
            says.append(f"{wanted[MEMORY] // 2**20}M of memory per slot")
        if nodes:
            says.append(f"not on {', '.join(wanted[EXCLUDED])}")
        if states.experiment_state(gathered)[0] == "PAUSED":
            says.append("once the experiment is resumed")
        return Wish(arguments, ", ".join(says), reopens=True)

    ask_each(out, "retry", ids, dry_run, look)


def _reasons(ends: Sequence[str]) -> list[Reason]:
    found: dict[Reason, None] = {}
    for word in (word for text in ends for word in text.split(",") if word):
        if word.upper() not in _ENDS:
            raise UsageError(f"--state {word} is none of {', '.join(_ENDS)}")
        found |= dict.fromkeys(_ENDS[word.upper()])
    return list(found)


def _failed(
    found: find.Reference, gathered: gather.Gathered, reasons: Sequence[Reason]
) -> list[int]:
    """Return the failed trials that a retry concerns. Raises UsageError if there is none."""
    state = state_of(found, gathered)
    if gathered.closed is not None and gathered.closed.state == "CANCELED":
        hint = "submit the config again to run it once more"
        raise wrong_state("retry", found, "CANCELED, and with it the whole experiment", hint)
    if not found.trial and state == "STOPPING":
        raise wrong_state("retry", found, state)
    if found.trial and state not in ("ERROR", "CANCELED"):
        raise wrong_state("retry", found, f"{state}, not failed")
    failed = [
        trial
        for trial in gathered.trials
        if found.trial == trial.number or (not found.trial and states.trial_state(trial) == "ERROR")
    ]
    if not failed:
        raise UsageError("no trial of the experiment has failed", where=str(found))
    last = {t.number: t.standing.last_end.reason if t.standing.last_end else "" for t in failed}
    chosen = [number for number, reason in last.items() if not reasons or reason in reasons]
    if not chosen:
        others = ", ".join(f"{number} by {reason}" for number, reason in last.items())
        raise UsageError("no trial failed in this way", where=str(found), hint=f"failed: {others}")
    return chosen


def _memory(text: str, now: int | None) -> int:
    match = re.fullmatch(r"[xX](\d+(?:\.\d+)?)", text)
    if match is None:
        return int(changing.checked(MEMORY, text))
    if now is None:
        raise UsageError(
            "--mem x2 needs a base, and the config asks for no memory",
            hint="give an amount: --mem 8G",
        )
    return int(changing.checked(MEMORY, int(float(match[1]) * now)))
