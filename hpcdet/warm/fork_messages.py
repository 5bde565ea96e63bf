"""The messages between a worker and the nurseries of its nodes: a JSON object on each line.

They go through pipes that only the two have: nothing listens, and no file is there for others.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from hpcdet.store.fs import typed_fields

_Message = TypeVar("_Message")


@dataclass(frozen=True)
class ForkRequest:
    """The ranks of one attempt, or a signal for them.

    Attributes:
        number: of the attempt among those of this worker, from 1.
        argv: the command line of each rank, the interpreter first.
        environ: of all ranks, where it is not that of their nursery.
        ranks: what each has in its environment on top, by node.
        folder, log: where they begin, and where their output goes.
        signal: instead of all that: a signal for the ranks of that number; 0: none.
    """

    number: int
    argv: list[str] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    ranks: list[list[dict[str, str]]] = field(default_factory=list)
    folder: str = ""
    log: str = ""
    signal: int = 0


@dataclass(frozen=True)
class Answer:
    """An answer of a nursery.

    Attributes:
        kind: ``ready``: it forks ranks from now on; ``cold``: it never will; ``forked``, or
            ``refused``: the ranks of a request; ``ended``: one of them has.
        node: of the nursery, from 0.
        number: of the request.
        text: why, of ``cold`` and ``refused``.
        pids: of ``forked``, in the order of the ranks.
        pid, code: of ``ended``, as ``subprocess`` has them.
        oom: the kernel killed it for memory.

    Raises:
        ValueError: a process of ``pids`` cannot be a rank: who kills its group kills others.
    """

    kind: Literal["ready", "cold", "forked", "refused", "ended"]
    node: int = 0
    number: int = 0
    text: str = ""
    pids: list[int] = field(default_factory=list)
    pid: int = 0
    code: int = 0
    oom: bool = False

    def __post_init__(self) -> None:
        if any(pid <= 1 for pid in self.pids):
            raise ValueError(f"{self.pids} are no ranks")


def line(message: ForkRequest | Answer) -> bytes:
    """Return a message as it is sent, without the fields that have their defaults."""
    plain = {
        one.name: getattr(message, one.name)
        for one in dataclasses.fields(message)
        if getattr(message, one.name) or one.name in ("number", "kind")
    }
    return json.dumps(plain).encode() + b"\n"


def read(kind: type[_Message], raw: bytes) -> _Message:
    """Return the message in a line.

    Raises:
        ValueError: it is none of that kind.
    """
    value: Any = json.loads(raw)
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no message")
    return typed_fields.build(kind, value)
