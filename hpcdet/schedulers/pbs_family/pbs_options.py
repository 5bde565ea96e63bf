"""The directives of one ``qsub``: ours, then the site's, then the user's, each over the last."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hpcdet.errors import ConfigError
from hpcdet.schedulers.common.request import DEFAULT_PRIORITY, ScriptRequest, UserOptions
from hpcdet.schedulers.pbs_family import pbs_ids
from hpcdet.schedulers.pbs_family.pbs_text import TAG
from hpcdet.site.models import Value

MEBI = 1024**2
_PRIORITY = 10
"""Steps of ``-p``, from -1024 to 1023, for one of ``resources.priority``."""
SENTINEL_S = 900
SENTINEL_MEMORY = 1024 * MEBI
"""What a sentinel gets: it reads files, and may have to wait for a dead holder's lease."""

LETTERS = {
    "account": "A", "project": "P", "priority": "p", "queue": "q", "name": "N", "array": "J",
    "rerun": "r", "hold": "h", "tag": "v", "output": "o", "join": "j", "checkpoint": "c",
    "mail_options": "m", "mail_users": "M",
}  # fmt: skip
"""Words of ours for options of ``qsub`` that are no resources."""
ATTRIBUTES = ("umask", "depend")
"""What ``-W`` sets."""
RESOURCES = ("select", "nodes", "place", "walltime")
OURS = frozenset({
    "name", "array", "rerun", "hold", "tag", "output", "join", "checkpoint", "umask", "depend",
    "select", "nodes",
})  # fmt: skip
"""What the worker relies on; users' options may not change it."""
_LETTER = {letter: name for name, letter in LETTERS.items()}
_HINT = 'write ["-A acct", "-l place=scatter:excl", "-l filesystems=home"]'
_CHUNK = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


_WORDS = frozenset((*LETTERS, *ATTRIBUTES, *RESOURCES))
"""Options that templates name."""


@dataclass(frozen=True)
class PbsDirectives:
    """Return the text that a template prints behind ``#PBS``.

    ``options("walltime", "queue")`` are those of the named ones that apply, in this order, quoted;
    ``options.others`` are all that hpcdet has no word of its own for: resources of the job.
    """

    values: Mapping[str, Value]

    def __call__(self, *names: str) -> list[str]:
        return [
            text
            for name in names
            if name in self.values and (text := _line(name, self.values[name]))
        ]

    @property
    def others(self) -> list[str]:
        return self(*(name for name in self.values if name not in _WORDS))


@dataclass(frozen=True)
class WorkerSize:
    """The size of a worker, or of a sentinel.

    Attributes:
        nodes: that it has; all others are of each of them.
        memory: bytes; None: what the scheduler gives.
        chunk: further resources, of the site.
    """

    nodes: int
    ranks: int
    cpus: int
    memory: int | None
    chunk: Mapping[str, Value]


Sizes = Callable[[ScriptRequest, WorkerSize], dict[str, Value]]
"""The options by which a scheduler is asked for a size."""


def collect(request: ScriptRequest, sizes: Sizes) -> dict[str, Value]:
    """All options of a submission, but for what a policy requires.

    Raises:
        ConfigError: an option of the user is not understood, or asks for what hpcdet sets itself.
    """
    values = {**_ours(request), **sizes(request, _size(request)), **_of_site(request)}
    if request.priority is not None:
        values["priority"] = (DEFAULT_PRIORITY - request.priority) * _PRIORITY
    for name in request.view.skip:
        values.pop(name, None)
    user = parse(request.user)
    if request.after and "depend" in user:
        raise _refuse("-W depend is there already; --after sets it, too", request.user)
    values.update(user)
    if request.pool is not None:
        values["queue"] = request.pool
    return values


def chosen(pool: str | None, user: UserOptions) -> dict[str, Value]:
    """Options that the experiment's user has chosen. Raises ConfigError as ``parse``."""
    given = {"queue": pool} if pool is not None else {}
    return {**parse(user), **given}


def _size(request: ScriptRequest) -> WorkerSize:
    memory = request.memory_per_node
    if not request.watches:
        ranks = request.ranks_per_node
        cpus = ranks * request.cpus_per_rank
        return WorkerSize(request.nodes, ranks, cpus, memory, request.view.chunk)
    little = None if memory is None else min(memory, SENTINEL_MEMORY)
    return WorkerSize(request.view.bounds.min_nodes or 1, 1, 1, little, {})


def _ours(request: ScriptRequest) -> dict[str, Value]:
    small = bool(request.watches)
    walltime = request.walltime_s
    if small:
        walltime = request.view.nearest_s(SENTINEL_S, request.view.bounds.min_nodes or 1)
    width = 1 if small else request.tasks
    return {
        "name": request.name,
        "tag": f"{TAG}={request.tag}",
        "array": f"0-{width - 1}%{request.throttle}" if width > 1 else None,
        "rerun": "y" if request.rerun and not small else "n",
        "checkpoint": "n",
        "walltime": None if walltime is None else duration(walltime),
        "hold": request.held or None,
        "depend": _depend(request),
        # the script takes its output into the experiment; what PBS itself says is in its records
        "join": "oe",
        "output": "/dev/null",
        "umask": "077",
    }


def mebibytes(memory: int | None) -> str | None:
    """``2048mb``, rounded up; None for no memory."""
    return None if memory is None else f"{math.ceil(memory / MEBI)}mb"


def resources(chunk: Mapping[str, Value]) -> Iterator[str]:
    """``NAME=VALUE`` of a chunk; those that are None or False are left out. Raises ConfigError."""
    for name, value in chunk.items():
        if value is None or value is False:
            continue
        text = f"{name}={value}"
        if not _CHUNK.fullmatch(name) or re.search(r"[:+\s'\"]", str(value)):
            raise ConfigError(f"{text!r} is no resource of a chunk", where="site: chunk")
        yield text


def _of_site(request: ScriptRequest) -> dict[str, Value]:
    """The site's directives; a partition is a queue."""
    given = dict(request.view.directives)
    queue = given.pop("partition", None)
    return {**({"queue": queue} if queue else {}), **given}


def _depend(request: ScriptRequest) -> str | None:
    if request.watches:
        # of an array the end of its last task alone decides
        array = pbs_ids.is_array(request.watches)
        word = "afterany" if array or request.after_end == "any" else "afternotok"
        return f"{word}:{request.watches}"
    return request.dependency


def duration(seconds: float) -> str:
    """``HH:MM:SS``, as PBS reads it; hours may be any number."""
    minutes, s = divmod(math.ceil(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours:02d}:{m:02d}:{s:02d}"


def parse(user: UserOptions) -> dict[str, Value]:
    """``["-A acct", "-l place=excl,filesystems=home"]`` as a mapping of options to values.

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
        match = re.fullmatch(r"-([A-Za-z])(.*)", word, re.DOTALL)
        if match is None:
            raise _refuse(f"{word!r} is no option of qsub", user)
        letter, value = match.groups()
        if letter in "VIXzf":
            raise _refuse(f"-{letter} is not for jobs of hpcdet", user)
        if letter == "h":
            raise _refuse("-h is set by hpcdet itself", user)
        if not value:
            if not words:
                raise _refuse(f"-{letter} has no value", user)
            value = words.pop(0)
        for name, said in _named(letter, value, user):
            if name in OURS:
                raise _refuse(f"-{letter} {value}: {name} is set by hpcdet itself", user)
            found[name] = said
    return found


def _named(letter: str, value: str, user: UserOptions) -> Iterator[tuple[str, str]]:
    if letter in "lW":
        for part in value.split(","):
            name, mark, said = part.partition("=")
            if not mark:
                raise _refuse(f"-{letter} {value}: write NAME=VALUE", user)
            yield name, said
    elif letter in _LETTER:
        yield _LETTER[letter], value
    else:
        raise _refuse(f"-{letter} is not for jobs of hpcdet", user)


def _refuse(what: str, user: UserOptions) -> ConfigError:
    return ConfigError(what, where=user.where, hint=_HINT)


def _line(name: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    text = str(value)
    if re.search(r"[\x00-\x1f\x7f]", text):
        # a line break would end the directive and start a command
        raise ConfigError("a control character in an option of qsub", where=f"{name}={text!r}")
    if name in LETTERS:
        return f"-{LETTERS[name]}" if value is True else f"-{LETTERS[name]} {shlex.quote(text)}"
    flag = "W" if name in ATTRIBUTES else "l"
    return f"-{flag} {shlex.quote(f'{name}={text}')}"
