"""Why PBS lets a job wait: its comments, sorted by whether they pass, and what repairs the rest.

The texts are those of OpenPBS 23.06's scheduler. One that is not listed passes by itself, as far
as known.
"""

from __future__ import annotations

import re

from hpcdet.schedulers.common.base import Wait

_NODES = "ask for fewer nodes: resources.nodes, resources.slots_per_trial"
_MATCH = (
    "no host has what is asked for: lessen resources.memory_per_slot, resources.cpus_per_slot or "
    "resources.slots_per_node, or change pbs.pbsbatch_args"
)
_WALLTIME = "ask for less time: resources.walltime_s"
_STARTS = "PBS holds it, as its start failed too often; the logs of the hosts say why"
_OPERATOR = "an operator or manager of PBS holds it: ask the administrators"

_NOT_NOW = re.compile(r"^Not Running: *(.*)$", re.DOTALL)
_NEVER = re.compile(r"^Can Never Run: *(.*)$", re.DOTALL)
_LIMIT = re.compile(r"\blimit\b")
_OUTAGE = re.compile(
    r"Queue not started|ineligible state|[Dd]edicated [Tt]ime|no PBS license|[Pp]rovision"
)
_DETAIL = re.compile(r"\s*\([^()]*\)")
"""Numbers that change at every cycle: ``(R: 64 A: 16 T: 16)``."""


def words(comment: str) -> str:
    """Return the scheduler's own word for why a job waits; "" if the comment does not say."""
    found = _NOT_NOW.match(comment) or _NEVER.match(comment)
    return _DETAIL.sub("", found[1]).strip(" .") if found is not None else ""


def wait(comment: str) -> Wait:
    """The class of the comment of a job in state Q."""
    if (never := _NEVER.match(comment)) is not None:
        return _for_ever(never[1])
    said = words(comment)
    if _LIMIT.search(said):
        return Wait("limit")
    return Wait("outage") if _OUTAGE.search(said) else Wait()


def held(holds: str, depends: str) -> tuple[str, Wait]:
    """The scheduler's own word for, and the class of, what keeps a job in state H."""
    if "u" in holds:
        return "held by its owner", Wait("held")
    if "s" in holds and depends:
        return f"waits for {depends}", Wait()
    if "p" in holds:
        return "held for a bad password", Wait("launch", _OPERATOR)
    if "o" in holds:
        return "held by an operator", Wait("launch", _OPERATOR)
    return "held by the system", Wait("launch", _STARTS)


def _for_ever(said: str) -> Wait:
    if "walltime" in said:
        return Wait("never", _WALLTIME, "resources.walltime_s=LESS")
    if "total nodes" in said or "placement set" in said:
        return Wait("never", _NODES, "resources.nodes=FEWER")
    return Wait("never", _MATCH)
