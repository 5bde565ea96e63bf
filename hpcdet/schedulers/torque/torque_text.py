"""Parsers for what Torque's commands print, and Slurm's wrappers that have their names. Pure.

The wrappers begin each attribute with a tab, know fewer attributes, and print ids without a server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hpcdet.schedulers.common.allocation import ShownNode
from hpcdet.schedulers.pbs_family import pbs_text
from hpcdet.schedulers.pbs_family.pbs_text import PbsRow

_OF_WRAPPER = re.compile(r"^(Job Id|Queue):\t", re.MULTILINE)
_OF_PBS = {"exit_status": "Exit_status", "start_time": "stime", "comp_time": "obittime"}
"""Attributes that PBS calls otherwise."""
_WORDS = {"yes": "True", "no": "False"}


@dataclass(frozen=True)
class NamedRow:
    """A job with what finds it.

    Attributes:
        owner: without the host.
        account: that it is charged to; "" if it names none.
        queue: that it waits or runs in.
    """

    row: PbsRow
    name: str
    owner: str
    account: str = ""
    queue: str = ""

    @property
    def groups(self) -> frozenset[str]:
        """The groups it is counted in: of its owner, of the owner in its queue, of its account."""
        own = f"user {self.owner}"
        return frozenset({own, f"{own} queue {self.queue}", f"account {self.account}"})


def jobs(text: str) -> list[NamedRow]:
    """The jobs of ``qstat -f``; what is not understood is left out."""
    found = []
    for job, values in pbs_text.sections(_plain(text), "Job Id"):
        row = pbs_text.row(job, _as_pbs(values))
        if row is not None:
            owner = values.get("Job_Owner", "").partition("@")[0]
            name, account = values.get("Job_Name", ""), values.get("Account_Name", "")
            found.append(NamedRow(row, name, owner, account, values.get("queue", "")))
    return found


def _plain(text: str) -> str:
    """A wrapper's answer as Torque writes it, whose lines go on behind a tab."""
    return text.replace("\n\t", "\n    ") if _OF_WRAPPER.search(text) else text


def _as_pbs(values: Mapping[str, str]) -> dict[str, str]:
    named = {_OF_PBS.get(name, name): value for name, value in values.items()}
    # ctime of a wrapper is the end that it expects
    return {**named, "ctime": values.get("qtime", "")}


def queues(text: str) -> dict[str, dict[str, str]]:
    """The attributes of each queue of ``qstat -Q -f``, by its name."""
    return {
        name: {key: _WORDS.get(value, value) for key, value in values.items()}
        for name, values in pbs_text.sections(_plain(text), "Queue")
    }


@dataclass(frozen=True)
class TorqueNode:
    """A node of ``pbsnodes``; ``memory_mib`` is 0 if it is not told."""

    host: str
    cpus: int
    gpus: int
    memory_mib: int
    properties: frozenset[str]

    @property
    def shown(self) -> ShownNode:
        """The node, as its properties show it."""
        return ShownNode(self.host, self.properties)


def nodes(text: str) -> list[TorqueNode]:
    """The nodes of ``pbsnodes -a``, those that are down too."""
    return list(_nodes(text))


def _nodes(text: str) -> Iterator[TorqueNode]:
    for part in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        host, _, body = part.partition("\n")
        pairs = (line.strip().partition(" = ") for line in body.splitlines())
        values = {name: value for name, mark, value in pairs if mark}
        if "state" not in values:
            continue
        memory = re.search(r"(?:physmem|availmem)=(\d+)([km])b", values.get("status", ""))
        mebi = int(memory[1]) // (1024 if memory[2] == "k" else 1) if memory else 0
        has = frozenset(re.findall(r"[^\s,]+", values.get("properties", "")))
        yield TorqueNode(host.strip(), _whole(values, "np"), _whole(values, "gpus"), mebi, has)


def _whole(values: Mapping[str, str], name: str) -> int:
    text = values.get(name, "")
    return int(text) if text.isdecimal() else 0
