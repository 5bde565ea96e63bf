"""Parsers for the output of Slurm's commands. Pure: text in, values of ``base`` out."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hpcdet.schedulers.common.base import PartitionInfo, Refusal, Task, TaskState, Usage, Wait
from hpcdet.schedulers.slurm.answers import slurm_waits

SQUEUE_FIELDS = (
    "ArrayJobID", "ArrayTaskID", "State", "Reason", "RestartCnt", "SubmitTime", "StartTime",
    "EndTime", "exit_code", "NodeList",
)  # fmt: skip
SACCT_FIELDS = ("JobID", "State", "ExitCode", "Submit", "Start", "End", "NodeList")
USAGE_FIELDS = ("JobID", "Submit", "Start", "End", "ElapsedRaw", "AllocTRES")
USAGE = ("sacct", "-X", "-D", "-n", "-P", "-o", ",".join(USAGE_FIELDS))

STATES = {
    "PENDING": TaskState.PENDING,
    "REQUEUED": TaskState.PENDING,
    "REQUEUE_FED": TaskState.PENDING,
    "REQUEUE_HOLD": TaskState.PENDING,
    "RESV_DEL_HOLD": TaskState.PENDING,
    "SPECIAL_EXIT": TaskState.PENDING,
    "CONFIGURING": TaskState.PENDING,  # its nodes are being booted, or made by a cloud
    "RUNNING": TaskState.RUNNING,
    "RESIZING": TaskState.RUNNING,
    "SIGNALING": TaskState.RUNNING,
    "STOPPED": TaskState.RUNNING,
    "SUSPENDED": TaskState.RUNNING,
    "COMPLETING": TaskState.ENDING,
    "STAGE_OUT": TaskState.ENDING,
    "COMPLETED": TaskState.COMPLETED,
    "FAILED": TaskState.FAILED,
    "CANCELLED": TaskState.CANCELED,
    "REVOKED": TaskState.CANCELED,
    "TIMEOUT": TaskState.TIMEOUT,
    "DEADLINE": TaskState.TIMEOUT,
    "PREEMPTED": TaskState.PREEMPTED,
    "NODE_FAIL": TaskState.NODE_FAIL,
    "BOOT_FAIL": TaskState.NODE_FAIL,
    "OUT_OF_MEMORY": TaskState.OOM,
}

_NODES = re.compile(r"(\d+)([KM]?)")  # 2048 nodes are printed as 2K
_LIMIT = re.compile(r"MaxSubmit|MaxJobs|SubmitJobs|job submit limit|temporarily unable to accept")
_OTHER_LIMIT = re.compile(r"\b(?:QOS|Assoc|Part)\w*(?:Max|Min|Grp)\w+")
_WIDTH = re.compile(r"Invalid job array specification")
_UNAVAILABLE = re.compile(
    r"[Uu]nable to contact|[Tt]imed out|Connection (?:refused|timed out|reset)|standby mode"
    r"|[Zz]ero [Bb]ytes|[Cc]ommunication connection failure|[Aa]uthentication|munge"
    r"|try again|Transport endpoint|temporarily unavailable|Unable to connect|No route to host"
    r"|establish a configuration source|fetch.config|I/O error"
)


@dataclass(frozen=True)
class SlurmRow:
    """A task and the job it belongs to, with the time the job was submitted (epoch seconds).

    ``indices`` are those that a row of a pending array stands for.
    """

    task: Task
    submitted: float | None
    indices: frozenset[int]


PARTITIONS = ("sinfo", "-h", "-o", "%P|%l|%D|%a|%M|%s")
ASKED = ("squeue", "--me", "-h", "-t", "PENDING", "-o", "%F|%P|%D")
"""Job, partitions and least number of nodes of what waits."""

_RUNS = ("-h", "-t", "RUNNING,COMPLETING,SUSPENDED,STOPPED")
OF_PROJECTS = ("squeue", *_RUNS, "-o", "%a|%F")
"""Account and job of each task that runs, of all users whose jobs Slurm shows to this one."""
OF_PARTITIONS = ("squeue", "--me", *_RUNS, "-o", "%P|%F")
"""Partition and job of each task of this user that runs."""


def running_of(text: str, name: str) -> Counter[str]:
    """Tasks of an account or partition by job, in what the queries above print."""
    lines = (line.strip().partition("|") for line in text.splitlines())
    return Counter(job for place, _, job in lines if place == name)


def squeue_format() -> str:
    """For ``squeue -O``: whole fields, and bars between them."""
    return ",".join(f"{name}:|" for name in SQUEUE_FIELDS)


def squeue(text: str) -> list[SlurmRow]:
    """The rows of ``squeue -h -O`` in ``squeue_format``, with times as ``%s``.

    Rows that are not understood are left out.
    """
    return [row for line in text.splitlines() for row in _squeue_rows(line)]


def squeue_gist(text: str) -> frozenset[tuple[object, ...]]:
    """Return the part of ``squeue``'s answer whose difference means a change.

    Estimated starts and the reason for waiting change all the time while nothing does.
    """
    return frozenset(
        (row.task.job, row.indices, row.task.state, row.task.restarts, row.task.nodes)
        for row in squeue(text)
    )


def _squeue_rows(line: str) -> Iterator[SlurmRow]:
    parts = [part.strip() for part in line.split("|", len(SQUEUE_FIELDS) - 1)]
    if len(parts) != len(SQUEUE_FIELDS):
        return
    job, array, state, reason, restarts, submit, start, end, status, nodes = parts
    known = STATES.get(state)
    if known is None or not job.isdecimal():
        return
    members = frozenset(indices(array) or {0})
    reason = state if state == "CONFIGURING" else reason
    code = int(status) if status.isdecimal() else 0
    task = Task(
        job=job,
        index=min(members) if len(members) == 1 else -1,
        state=known,
        reason="" if reason == "None" else reason,
        restarts=int(restarts) if restarts.isdecimal() else 0,
        nodes=hosts(nodes.rstrip("|")),
        start=_iso(start),
        end=_iso(end),
        exit_code=os.waitstatus_to_exitcode(code & 0xFFFF) if known.final else None,
        count=len(members),
        wait=slurm_waits.wait(reason) if known is TaskState.PENDING else Wait(),
    )
    yield from _rows(task, _epoch(submit), members)


def _rows(task: Task, submitted: float | None, members: frozenset[int]) -> Iterator[SlurmRow]:
    """One row for tasks that wait together, one for each that ended with others."""
    if not task.state.final:
        yield SlurmRow(task, submitted, members)
        return
    for index in sorted(members):
        yield SlurmRow(replace(task, index=index, count=1), submitted, frozenset({index}))


def sacct(text: str, uid: int, preempt_as_cancelled: bool = False) -> list[SlurmRow]:
    """The rows of ``sacct -X -n -P`` with ``SACCT_FIELDS``.

    Args:
        preempt_as_cancelled: a job that somebody else canceled was preempted.
    """
    return list(_sacct_rows(text, uid, preempt_as_cancelled))


def _sacct_rows(text: str, uid: int, preempt_as_cancelled: bool) -> Iterator[SlurmRow]:
    for line in text.splitlines():
        parts = line.split("|")
        match = re.fullmatch(r"(\d+)(?:_(?:(\d+)|\[(.*)\]))?", parts[0])
        if match is None or len(parts) != len(SACCT_FIELDS):
            continue
        _, said, exit_code, submit, start, end, nodes = parts
        word, _, by = said.partition(" by ")
        state = STATES.get(word.rstrip("+"))
        if state is None:
            continue
        if state is TaskState.CANCELED and preempt_as_cancelled and by != str(uid):
            state = TaskState.PREEMPTED
        members = frozenset(indices(match[2] or match[3] or "0"))
        code, _, signal = exit_code.partition(":")
        task = Task(
            job=match[1],
            index=min(members) if len(members) == 1 else -1,
            state=state,
            nodes=() if nodes == "None assigned" else hosts(nodes),
            start=_iso(start),
            end=_iso(end),
            exit_code=(-int(signal) if int(signal) else int(code)) if state.final else None,
            count=len(members),
        )
        yield from _rows(task, _epoch(submit), members)


def usage(text: str) -> list[tuple[Usage, float | None]]:
    """The rows that ``USAGE`` prints, each with its time of submission.

    Tasks that never started are left out.
    """
    found = []
    for line in text.splitlines():
        parts = line.split("|")
        match = re.fullmatch(r"(\d+)(?:_(\d+))?", parts[0])
        if match is None or len(parts) != len(USAGE_FIELDS):
            continue
        _, submit, start, end, elapsed, resources = parts
        begun = _epoch(start)
        if begun is None or not elapsed.isdecimal():
            continue
        gpus = re.search(r"(?:^|,)gres/gpu=(\d+)", resources)
        index, held = int(match[2] or 0), int(gpus[1]) if gpus else 0
        run = Usage(match[1], index, begun, _epoch(end), float(elapsed), held)
        found.append((run, _epoch(submit)))
    return found


def usage_gist(text: str) -> frozenset[Usage]:
    """Return the part of an answer whose difference means a change: the runs that are over."""
    return frozenset(run for run, _ in usage(text) if run.end is not None)


def indices(text: str) -> set[int]:
    """Array indices of ``3``, ``2-6%2`` or ``0,4-8:2``; empty for a job without an array."""
    found: set[int] = set()
    for part in text.strip("[]").partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is not None:
            first, last = int(match[1]), int(match[2] or match[1])
            found.update(range(first, last + 1, int(match[3] or 1)))
    return found


def hosts(text: str) -> tuple[str, ...]:
    """Names in a host list: ``n[1-3,07],login`` is n1 n2 n3 n07 login."""
    found: list[str] = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        found += _expand(item)
    return tuple(found)


def _expand(item: str) -> list[str]:
    match = re.search(r"\[([^\]]*)\]", item)
    if match is None:
        return [item]
    names: list[str] = []
    for part in match[1].split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            name = f"{number:0{len(first)}d}"
            names += _expand(item[: match.start()] + name + item[match.end() :])
    return names


def parse_config(text: str) -> dict[str, str]:
    """Parse ``scontrol show config`` to a mapping of its keys to their values."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, mark, value in pairs if mark}


def job_id(text: str) -> str | None:
    """The id in what ``sbatch --parsable`` printed: ``12`` or ``12;cluster``."""
    lines = [line for line in text.splitlines() if re.fullmatch(r"\d+(;.*)?", line)]
    return lines[-1].partition(";")[0] if lines else None


def starts_at(text: str) -> float | None:
    """Return when a job would start that ends no other one, in what ``sbatch --test-only`` says."""
    found = re.search(r"\bto start at (\d+)\b", text)
    return float(found[1]) if found and "Preempts:" not in text else None


def message(text: str) -> str:
    """Return a command's standard error as one line, without the command's name."""
    lines = re.sub(r"^(?:s[a-z]+: )?(?:error: |fatal: )?", "", text, flags=re.M).splitlines()
    return "; ".join(line.strip() for line in lines if line.strip())


def refusal(said: str) -> Refusal:
    """Return the kind of refusal in a message of ``sbatch`` (``base.Refusal``)."""
    text = message(said)
    named = _OTHER_LIMIT.findall(text)
    if _UNAVAILABLE.search(text):
        return Refusal("unavailable", text)
    if any(_LIMIT.search(name) for name in named) or (not named and _LIMIT.search(text)):
        return Refusal("limit", text)
    if _WIDTH.search(text):
        return Refusal("width", text)
    return Refusal("invalid", text)


def sinfo(text: str) -> list[PartitionInfo]:
    """The rows that ``PARTITIONS`` prints; lines that are not understood are left out."""
    found: dict[str, PartitionInfo] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        nodes = count(parts[2]) if len(parts) == 6 else None
        if nodes is None:
            continue
        name = parts[0].removesuffix("*")
        found[name] = PartitionInfo(
            name,
            seconds(parts[1]),
            nodes + (found[name].nodes if name in found else 0),
            parts[3] == "up",
            parts[0].endswith("*"),
            "SUSPEND" in parts[4] or "GANG" in parts[4],
            count(parts[5].rpartition("-")[2]),  # 1-infinite, or 2-8
        )
    return list(found.values())


def count(text: str) -> int | None:
    """Return a number of nodes as ``sinfo`` prints it: ``12``, or ``2K`` for 2048."""
    found = _NODES.fullmatch(text)
    return int(found[1]) * 1024 ** " KM".index(found[2] or " ") if found else None


def too_wide(job: str, asked: str, partitions: str) -> bool:
    """True if a job asks for more nodes than any of its partitions can ever give to one.

    Args:
        asked: what ``ASKED`` prints. A job that it lacks is taken to fit.
        partitions: what ``PARTITIONS`` prints.
    """
    widest = {part.name: part.widest for part in sinfo(partitions)}
    for line in asked.splitlines():
        one, names, nodes = (*line.split("|"), "", "")[:3]
        least, known = count(nodes), [widest.get(name) for name in names.split(",")]
        if one == job and least is not None:
            return all(most is not None and least > most for most in known)
    return False


def seconds(text: str) -> int | None:
    """Seconds of ``2-12:00:00``, ``30:00`` or ``15``(minutes); None if there is no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        return None
    days, one, two, three = (int(part) if part else 0 for part in match.groups())
    if match[1] is not None or match[4] is not None:
        return days * 86400 + one * 3600 + two * 60 + three
    return one * 60 + two


def _epoch(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def _iso(text: str) -> str:
    """A time printed as ``%s``, as ISO 8601 in UTC; empty if it is not known."""
    if not text.isdecimal():
        return ""
    return datetime.fromtimestamp(int(text), UTC).isoformat().replace("+00:00", "Z")
