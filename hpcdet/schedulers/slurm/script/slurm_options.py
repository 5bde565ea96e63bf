"""The options of one ``sbatch``: ours, then the site's, then the user's, each over the last."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from hpcdet.errors import ConfigError
from hpcdet.schedulers.common.request import DEFAULT_PRIORITY, ScriptRequest, UserOptions
from hpcdet.schedulers.slurm.script import node_requests
from hpcdet.site.models import Value
from hpcdet.units import clock_time

MEBI = 1024**2
OURS = frozenset({
    "array", "job-name", "comment", "export", "output", "error", "open-mode", "chdir", "signal",
    "requeue", "no-requeue", "exclude",
})  # fmt: skip
"""What the worker relies on; users' options may not change it."""
SHORT = {"a": "array", "J": "job-name", "o": "output", "e": "error", "D": "chdir", "x": "exclude",
         "p": "partition", "A": "account", "q": "qos", "C": "constraint", "t": "time", "N": "nodes",
         "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "w": "nodelist"}  # fmt: skip


_NICE = 100
"""Steps of ``--nice`` for one of ``resources.priority``, and what Slurm takes without a number."""
SENTINEL_S = 900
SENTINEL_MEMORY = "1G"
"""What a sentinel gets: it reads files, and may have to wait for a dead holder's lease."""
_BEHIND = 10_000
"""``--nice`` of the sentinel of workers that may grow. Slurm counts every job ahead in the queue as
a delay (``--test-only``), one that waits for others, too: this one would forbid them to grow."""

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


def collect(request: ScriptRequest) -> Options:
    """All options of a submission.

    Raises:
        ConfigError: an option of the user is not understood, or asks for what hpcdet sets itself
            or for what a policy forbids.
    """
    if request.watches:
        return _of_sentinel(request)
    return _of_worker(request)


def _of_worker(request: ScriptRequest) -> Options:
    ours, waiting = _ours(request), _waiting(request)
    values: dict[str, Value] = {**ours, **waiting, **request.view.directives}
    for name in request.view.skip:
        values.pop(name, None)
    values.update(parse(request.user))
    if request.behind and "dependency" not in request.view.skip:
        values["dependency"] = _both(waiting["dependency"], values.get("dependency"))
    if request.required is not None:
        values = node_requests.added(values, chosen(request.pool, request.user), request.required)
    return Options(values, frozenset(ours) | {"partition", "account", "qos", "time", "mem"})


def chosen(pool: str | None, user: UserOptions) -> dict[str, Value]:
    """Options that the experiment's user has chosen. Raises ConfigError as ``parse``."""
    given = {"partition": pool} if pool is not None else {}
    return {**given, **parse(user)}


SIZES = frozenset({
    "array", "nodes", "ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-gpu",
    "ntasks-per-socket", "cpus-per-task", "cpus-per-gpu", "mem", "mem-per-cpu", "mem-per-gpu",
    "gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "exclusive", "nodelist",
    "exclude", "sockets-per-node", "cores-per-socket", "threads-per-core", "switches", "contiguous",
    "time", "time-min", "signal", "requeue", "no-requeue", "hold", "mincpus",
})  # fmt: skip
"""What is asked for a worker's sake; a sentinel is small."""


def _of_sentinel(request: ScriptRequest) -> Options:
    """Options of the job that runs after an array: where its workers do, but one small task."""
    given, view = _of_worker(request), request.view
    nodes = view.bounds.min_nodes or 1
    dependency = {"bad": "afternotok", "any": "afterany"}[request.after_end]
    small: dict[str, Value] = {
        "dependency": f"{dependency}:{request.watches}",
        # else it stays in the queue for ever once all tasks have ended well
        "kill-on-invalid-dep": "yes",
        "nodes": nodes,
        "ntasks": nodes,
        "cpus-per-task": 1,
        "mem": SENTINEL_MEMORY if given.values.get("mem") else None,
        "time": clock_time(view.nearest_s(SENTINEL_S, nodes)),
        "output": str(given.values["output"]).replace("%A_%a", "%j"),
    }
    kept = {name: value for name, value in given.values.items() if name not in SIZES}
    if request.least_nodes < request.nodes:
        small["nice"] = _last(kept.get("nice"))
    asked = {name: value for name, value in small.items() if name not in view.skip}
    return Options({**kept, **asked}, given.known | set(small) - {"nice"})


def _last(nice: Value) -> Value:
    """Return a ``--nice`` that is behind; text that is no number is left to Slurm to refuse."""
    if nice is None or isinstance(nice, bool):
        return (_NICE if nice else 0) + _BEHIND
    text = str(nice)
    return int(text) + _BEHIND if re.fullmatch(r"[+-]?[0-9]+", text) else nice


def _ours(request: ScriptRequest) -> dict[str, Value]:
    logs = str(request.output).replace("\\", "\\\\").replace("%", "%%")
    memory = request.memory_per_node
    return {
        "job-name": request.name,
        "comment": request.tag,
        "array": f"0-{request.tasks - 1}%{request.throttle}",
        **_size(request),
        "cpus-per-task": request.cpus_per_rank,
        "mem": None if memory is None else f"{math.ceil(memory / MEBI)}M",
        "time": None if request.walltime_s is None else clock_time(request.walltime_s),
        "exclude": ",".join(request.exclude) or None,
        "chdir": str(request.folder),
        "output": f"{logs}/%A_%a.log",
        "open-mode": "append",
        "signal": f"USR2@{request.signal_lead_s}",
        # the script allows it once it runs: a launch that fails must not leave a task that is held
        "no-requeue": True,
        "export": "NIL",
    }


def _size(request: ScriptRequest) -> dict[str, Value]:
    if request.least_nodes == request.nodes:
        return {"nodes": request.nodes, "ntasks-per-node": request.ranks_per_node}
    # once a job that names tasks has had the most nodes, Slurm counts the tasks of all of them as
    # asked for, and the requeued job waits until there are as many again
    return {
        "nodes": f"{request.least_nodes}-{request.nodes}",
        "mincpus": request.ranks_per_node * request.cpus_per_rank,
    }


def _waiting(request: ScriptRequest) -> dict[str, Value]:
    """Options that keep a job in the queue; templates print them among the others."""
    if request.after and "dependency" in parse(request.user):
        raise _refuse("--dependency is there already; --after sets it, too", request.user)
    after = request.dependency
    return {"hold": request.held, "dependency": after, "nice": _nice(request.priority)}


def _both(behind: Value, given: Value) -> Value:
    """Return a dependency that demands ours and the site's or the user's."""
    if given in (None, behind):
        return behind
    # one of several that "?" joins cannot be demanded beside another dependency; without ours a job
    # may begin too early, without theirs on what is not there
    return given if "?" in str(given) else f"{behind},{given}"


def _nice(priority: int | None) -> int | None:
    """Users may lower the priority of their jobs, and not raise it."""
    later = 0 if priority is None else max(0, priority - DEFAULT_PRIORITY)
    return later * _NICE or None


def parse(user: UserOptions) -> dict[str, Value]:
    """``["--gres=gpu:1", "-A acct", "--exclusive"]`` as a mapping of options to values.

    Raises:
        ConfigError: an argument is no option, or one that hpcdet sets itself.
    """
    try:
        words = [word for argument in user.words for word in shlex.split(argument)]
    except ValueError as error:
        raise _refuse(f"a quote is not closed in {list(user.words)}", user) from error
    found: dict[str, Value] = {}
    while words:
        word = words.pop(0)
        match = re.fullmatch(r"--([a-z][a-z0-9-]*)(?:=(.*))?|-([A-Za-z])(.*)", word, re.DOTALL)
        if word in HETJOB:
            raise _refuse("heterogeneous jobs (hetjobs) are not supported", user)
        if match is None:
            raise _refuse(f"{word!r} is no option of sbatch", user)
        name, value, letter, tail = match.groups()
        if letter is not None:
            if letter not in SHORT:
                raise _refuse(f"write -{letter} in its long form", user)
            name, value = SHORT[letter], tail or None
        if name in OURS:
            raise _refuse(f"--{name} is set by hpcdet itself", user)
        if value is None and words and not words[0].startswith("-"):
            value = words.pop(0)
        found[name] = True if value is None else value
    return found


def _refuse(what: str, user: UserOptions) -> ConfigError:
    return ConfigError(what, where=user.where, hint='write ["--gres=gpu:1", "--exclusive"]')


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
