"""The options of one ``sbatch``: ours, then the site's, then the user's, each over the last."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpcdet.errors import ConfigError
from hpcdet.jobs.script import requirements
from hpcdet.jobs.script.requirements import NodeRequest
from hpcdet.site.models import PartitionView, Value
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent

MEBI = 1024**2
OURS = frozenset({
    "array", "job-name", "comment", "export", "output", "error", "open-mode", "chdir", "signal",
    "requeue", "no-requeue", "exclude",
})  # fmt: skip
"""What the worker relies on; an experiment's ``slurm.sbatch_args`` may not change it."""
SHORT = {"a": "array", "J": "job-name", "o": "output", "e": "error", "D": "chdir", "x": "exclude",
         "p": "partition", "A": "account", "q": "qos", "C": "constraint", "t": "time", "N": "nodes",
         "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "w": "nodelist"}  # fmt: skip


SENTINEL_S = 900
SENTINEL_MEMORY = "1G"
"""What a sentinel gets: it reads files, and may have to wait for a dead holder's lease."""

HETJOB = (":", "hetjob", "packjob", "--hetjob", "--packjob")
"""What parts of a job of several shapes are written with: our workers all have one shape."""


@dataclass(frozen=True)
class Options:
    """Return the text that a template prints behind ``#SBATCH``.

    ``options("time", "mem")`` are those of the named ones that apply, in this order, quoted;
    ``options.others`` are all that hpcdet has no word of its own for.
    """

    values: Mapping[str, Value]
    known: frozenset[str]

    def __call__(self, *names: str) -> list[str]:
        return [
            text
            for name in names
            if name in self.values and (text := _line(name, self.values[name]))
        ]

    @property
    def others(self) -> list[str]:
        return self(*(name for name in self.values if name not in self.known))


def collect(
    experiment: Resolved,
    view: PartitionView,
    intent: Intent,
    paths: ExperimentPaths,
    *,
    signal_lead_s: int,
    expand: Callable[[str], str],
    required: NodeRequest | None = None,
) -> Options:
    """All options of a submission.

    Args:
        expand: fills in variables that a site's directive values may use.
        required: what a policy requires of the nodes.

    Raises:
        ConfigError: ``slurm.sbatch_args`` is not understood, or asks for what hpcdet sets itself
            or for what a policy forbids.
    """
    ours = _ours(experiment, intent, paths, signal_lead_s=signal_lead_s)
    values: dict[str, Value] = {**ours, **_waiting(experiment, intent)}
    for name, value in view.directives.items():
        values[name] = expand(value) if isinstance(value, str) else value
    for name in view.skip:
        values.pop(name, None)
    values.update(parse(experiment.slurm.sbatch_args))
    if required is not None:
        values = requirements.added(values, chosen(experiment), required)
    return Options(values, frozenset(ours) | {"partition", "account", "qos", "time", "mem"})


def chosen(experiment: Resolved) -> dict[str, Value]:
    """Options that the experiment's user has chosen. Raises ConfigError as ``parse``."""
    pool = experiment.resources.resource_pool
    given = {"partition": pool} if pool is not None else {}
    return {**given, **parse(experiment.slurm.sbatch_args)}


def refuse_undoing(experiment: Resolved, required: NodeRequest) -> None:
    """Refuse options of the user that undo what a policy requires.

    Raises:
        PolicyRefused: P17: they do.
        ConfigError: as ``parse``.
    """
    asked = chosen(experiment)
    requirements.added(asked, asked, required)


SIZES = frozenset({
    "array", "nodes", "ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-gpu",
    "ntasks-per-socket", "cpus-per-task", "cpus-per-gpu", "mem", "mem-per-cpu", "mem-per-gpu",
    "gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "exclusive", "nodelist",
    "exclude", "sockets-per-node", "cores-per-socket", "threads-per-core", "switches", "contiguous",
    "time", "time-min", "signal", "requeue", "no-requeue", "hold", "mincpus",
})  # fmt: skip
"""What is asked for a worker's sake; a sentinel is small."""


def of_sentinel(
    experiment: Resolved,
    view: PartitionView,
    intent: Intent,
    paths: ExperimentPaths,
    *,
    signal_lead_s: int,
    expand: Callable[[str], str],
    dependency: str,
    required: NodeRequest | None = None,
) -> Options:
    """Options of the job that runs after an array: where its workers do, but one small task.

    Args:
        dependency: after what end of it (``succession.dependency``).

    Raises ConfigError as ``collect``.
    """
    given = collect(
        experiment,
        view,
        intent,
        paths,
        signal_lead_s=signal_lead_s,
        expand=expand,
        required=required,
    )
    small: dict[str, Value] = {
        "dependency": f"{dependency}:{intent.watches}",
        # else it stays in the queue for ever once all tasks have ended well
        "kill-on-invalid-dep": "yes",
        "nodes": 1,
        "ntasks": 1,
        "cpus-per-task": 1,
        "mem": SENTINEL_MEMORY if given.values.get("mem") else None,
        "time": duration(min(SENTINEL_S, view.max_walltime_s or SENTINEL_S)),
        "output": str(given.values["output"]).replace("%A_%a", "%j"),
    }
    kept = {name: value for name, value in given.values.items() if name not in SIZES}
    asked = {name: value for name, value in small.items() if name not in view.skip}
    return Options({**kept, **asked}, given.known | set(small))


def _ours(
    experiment: Resolved,
    intent: Intent,
    paths: ExperimentPaths,
    *,
    signal_lead_s: int,
) -> dict[str, Value]:
    need = experiment.resources
    per_node = need.slots_per_node * experiment.lanes
    logs = str(paths.job_log(intent.number)).replace("\\", "\\\\").replace("%", "%%")
    memory = need.memory_per_slot
    return {
        "job-name": intent.name,
        "comment": intent.tag,
        "array": f"0-{intent.tasks - 1}%{intent.throttle}",
        **_size(need, per_node),
        "cpus-per-task": need.cpus_per_slot,
        "mem": None if memory is None else f"{math.ceil(memory * per_node / MEBI)}M",
        "time": None if need.walltime_s is None else duration(need.walltime_s),
        "exclude": ",".join(intent.exclude) or None,
        "chdir": str(paths.root),
        "output": f"{logs}/%A_%a.log",
        "open-mode": "append",
        "signal": f"USR2@{signal_lead_s}",
        # the script allows it once it runs: a launch that fails must not leave a task that is held
        "no-requeue": True,
        "export": "NIL",
    }


def _size(need: Resources, per_node: int) -> dict[str, Value]:
    if need.least_nodes == need.nodes:
        return {"nodes": need.nodes, "ntasks-per-node": per_node}
    # once a job that names tasks has had the most nodes, Slurm counts the tasks of all of them as
    # asked for, and the requeued job waits until there are as many again
    return {
        "nodes": f"{need.least_nodes}-{need.nodes}",
        "mincpus": per_node * need.cpus_per_slot,
    }


def _waiting(experiment: Resolved, intent: Intent) -> dict[str, Value]:
    """Options that keep a job in the queue; templates print them among the others."""
    if intent.after and "dependency" in parse(experiment.slurm.sbatch_args):
        raise _refuse("--dependency is there already; --after sets it, too")
    after = ":".join(["afterok", *intent.after]) if intent.after else None
    return {"hold": intent.held, "dependency": after}


def duration(seconds: float) -> str:
    """``D-HH:MM:SS``, as Slurm reads it."""
    minutes, s = divmod(math.ceil(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"{days}-{h:02d}:{m:02d}:{s:02d}"


def parse(arguments: list[str]) -> dict[str, Value]:
    """``["--gres=gpu:1", "-A acct", "--exclusive"]`` as a mapping of options to values.

    Raises:
        ConfigError: an argument is no option, or one that hpcdet sets itself.
    """
    try:
        words = [word for argument in arguments for word in shlex.split(argument)]
    except ValueError as error:
        raise _refuse(f"a quote is not closed in {arguments}") from error
    found: dict[str, Value] = {}
    while words:
        word = words.pop(0)
        match = re.fullmatch(r"--([a-z][a-z0-9-]*)(?:=(.*))?|-([A-Za-z])(.*)", word, re.DOTALL)
        if word in HETJOB:
            raise _refuse("heterogeneous jobs (hetjobs) are not supported")
        if match is None:
            raise _refuse(f"{word!r} is no option of sbatch")
        name, value, letter, tail = match.groups()
        if letter is not None:
            if letter not in SHORT:
                raise _refuse(f"write -{letter} in its long form")
            name, value = SHORT[letter], tail or None
        if name in OURS:
            raise _refuse(f"--{name} is set by hpcdet itself")
        if value is None and words and not words[0].startswith("-"):
            value = words.pop(0)
        found[name] = True if value is None else value
    return found


def _refuse(what: str) -> ConfigError:
    return ConfigError(
        what, where="slurm.sbatch_args", hint='write ["--gres=gpu:1", "--exclusive"]'
    )


def _line(name: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f"--{name}"
    text = str(value)
    if re.search(r"[\x00-\x1f\x7f]", text):
        # a line break would end the directive and start a command
        raise ConfigError("a control character in an option of sbatch", where=f"--{name}={text!r}")
    return f"--{name}={shlex.quote(text)}"
