"""Parsers for what ``qstat -f`` prints, as JSON or as text. Pure: text in, rows out.

Ask with ``TZ=UTC``: times are printed in the local time of who asks.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hpcdet.schedulers.common.base import Refusal
from hpcdet.schedulers.pbs_family import pbs_ids

TAG = "HPCDET_TAG"
"""The variable of a job that holds its tag."""

_SAME_ID_S = 86400
"""Ids begin anew with a new server; a job this much older is another one."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d+) (\d+):(\d+):(\d+) (\d{4})")
_UNKNOWN = re.compile(r"Unknown Job Id\s+(\S+)")

LIMIT_CODES = frozenset({3, 38, 39})
"""An array wider than the server takes; as many jobs, or resources, as the user may queue."""
UNAVAILABLE_CODES = frozenset({162, 255})
"""The server cannot be reached."""
_LIMIT = re.compile(
    r"would exceed .*limit|[Mm]aximum number of jobs already in queue|job submit limit"
)
_UNAVAILABLE = re.compile(
    r"[Cc]annot connect|Unable to contact|Connection (?:refused|timed out|reset)|[Tt]imed out"
    r"|Communication failure"
    r"|End of [Ff]ile|Premature end|No Permission|Invalid credential|try again|shutting down"
    r"|Unknown Host|No space left"
)


@dataclass(frozen=True)
class PbsRow:
    """A job, an array or a subjob as the server shows it.

    Attributes:
        state, substate: of PBS: a letter and a number.
        exit_status: None if it has none. That of a subjob is its array's unless it has ``ran``.
        run_count: how often it was started.
        ran: it is no subjob, or one that was started and of which more than its place is known.
        hosts: of its present or last run.
        submitted, start, end: epoch seconds; None while unknown.
        holds: letters of who holds it (``u``, ``o``, ``s``); "" for nobody.
        depends: on what it waits, in PBS's words.
        walltime_s, used_s: what was asked for, and what it has used.
        gpus: that were asked for.
        tag: ours, "" without one.
    """

    id: str
    state: str
    substate: int = 0
    exit_status: int | None = None
    run_count: int = 0
    ran: bool = True
    comment: str = ""
    hosts: tuple[str, ...] = ()
    submitted: float | None = None
    start: float | None = None
    end: float | None = None
    holds: str = ""
    depends: str = ""
    walltime_s: float | None = None
    used_s: float | None = None
    gpus: int = 0
    tag: str = ""


def jobs(text: str) -> list[PbsRow] | None:
    """The rows of ``qstat -f -F json``; None if the text is no whole JSON.

    PBS prints JSON that is none where a value is a number such as ``005``.
    """
    try:
        shown = json.loads(text, strict=False)
    except ValueError:
        return None
    if not isinstance(shown, dict):
        return None
    found = shown.get("Jobs", {})
    if not isinstance(found, dict):
        return None
    rows = (row(job, _flat(values)) for job, values in found.items() if isinstance(values, dict))
    return [each for each in rows if each is not None]


def jobs_of_text(text: str) -> list[PbsRow]:
    """The rows of ``qstat -f`` without ``-F json``; what is not understood is left out."""
    rows = (row(job, values) for job, values in sections(text, "Job Id"))
    return [each for each in rows if each is not None]


def sections(text: str, kind: str) -> list[tuple[str, dict[str, str]]]:
    """The name and the attributes of each ``Job Id: 12.vm``, ``Queue: workq`` or ``Server: vm``.

    A job's variables may have lines that look like other jobs: those come behind it.
    """
    found = []
    for part in re.split(rf"^{kind}: *", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        values: dict[str, str] = {}
        # a line that begins with a tab goes on with the one before it
        for line in body.replace("\n\t", "").splitlines():
            name, mark, value = line.partition(" = ")
            if mark and line.startswith("    "):
                values.setdefault(name.strip(), value)
        found.append((title.strip(), values))
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The attributes as ``qstat`` without JSON names them: ``Resource_List.mem``."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str(value)
    return found


def row(job: str, values: Mapping[str, str]) -> PbsRow | None:
    """The row of the attributes that PBS shows of a job; None if they are none of a job."""
    state = values.get("job_state", "")
    if pbs_ids.parse(job, bare=True) is None or len(state) != 1:
        return None
    runs = _whole(values.get("run_count")) or 0
    subjob = pbs_ids.job_and_index(job)[0] != job
    return PbsRow(
        id=job,
        state=state,
        substate=_whole(values.get("substate")) or 0,
        exit_status=_whole(values.get("Exit_status")),
        run_count=runs,
        ran=not subjob or bool(runs) or "array_index" in values,
        comment=values.get("comment", ""),
        hosts=hosts(values.get("exec_host", "")),
        submitted=epoch(values.get("ctime", "")),
        start=epoch(values.get("stime", "")),
        end=epoch(values.get("obittime", "")),
        holds=values.get("Hold_Types", "n").strip("n"),
        depends=values.get("depend", ""),
        walltime_s=seconds(values.get("Resource_List.walltime", "")),
        used_s=seconds(values.get("resources_used.walltime", "")),
        gpus=_whole(values.get("Resource_List.ngpus")) or 0,
        tag=_tag(values),
    )


def _tag(values: Mapping[str, str]) -> str:
    if (value := values.get(f"Variable_List.{TAG}")) is not None:
        return value
    found = re.search(rf"(?:^|,){TAG}=([^,]*)", values.get("Variable_List", ""))
    return found[1] if found is not None else ""


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def hosts(text: str) -> tuple[str, ...]:
    """Names in an ``exec_host``: ``pb1/0*2+pb2/0*2`` is pb1 pb2."""
    names = (part.partition("/")[0] for part in text.split("+"))
    return tuple(dict.fromkeys(name for name in names if name))


def epoch(text: str) -> float | None:
    """Epoch seconds of ``Sat Nov 21 06:02:09 2026`` in UTC; None if it is no such time."""
    found = _TIME.fullmatch(text.strip())
    if found is None or found[1] not in _MONTHS:
        return None
    month = _MONTHS.index(found[1]) + 1
    day, hour, minute, second, year = (int(part) for part in found.groups()[1:])
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None


def seconds(text: str) -> float | None:
    """Seconds of ``01:30:00``, ``30:00`` or ``90``; None if it is no duration."""
    if not re.fullmatch(r"\d+(?::\d+){0,2}(?:\.\d+)?", text):
        return None
    total = 0.0
    for part in text.split(":"):
        total = 60 * total + float(part)
    return total


def iso(at: float | None) -> str:
    """ISO time of epoch seconds; "" for None."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def of_job(found: PbsRow | None, submitted_at: str) -> PbsRow | None:
    """The row, unless it is that of an older job with the same id.

    Args:
        submitted_at: ISO time; "": unknown.
    """
    if found is None or not submitted_at or found.submitted is None:
        return found
    since = datetime.fromisoformat(submitted_at).timestamp() - _SAME_ID_S
    return found if found.submitted > since else None


def unknown(text: str) -> frozenset[str]:
    """Keys (``pbs_ids.key``) of the jobs that the server says it does not know."""
    return frozenset(pbs_ids.key(found) for found in _UNKNOWN.findall(text))


def encode(rows: Iterable[PbsRow]) -> str:
    """Return rows as one text, for the file that processes share."""
    return json.dumps([dataclasses.asdict(row) for row in rows])


def decode(text: str) -> dict[str, PbsRow]:
    """Return the rows of ``encode`` by id; none if the text is of another version."""
    try:
        rows = [PbsRow(**{**one, "hosts": tuple(one["hosts"])}) for one in json.loads(text or "[]")]
    except (ValueError, TypeError, KeyError):
        return {}
    return {row.id: row for row in rows}


def gist(text: str) -> frozenset[tuple[object, ...]]:
    """Return the part of an answer whose difference means a change: not times and comments."""
    return frozenset(
        (row.id, row.state, row.substate, row.run_count, row.hosts) for row in decode(text).values()
    )


def message(text: str) -> str:
    """Return a command's standard error as one line, without the command's name and its usage."""
    lines = re.sub(r"^(?:q[a-z]+: )", "", text.partition("usage:")[0], flags=re.M).splitlines()
    return "; ".join(line.strip() for line in lines if line.strip())


def refusal(code: int, said: str) -> Refusal:
    """Return the kind of refusal that ``qsub`` ended with.

    Its exit code is the server's error code modulo 256: 38 is 15142. One that a signal has ended
    may have made a job.
    """
    text = message(said) or f"qsub ended with exit code {code}"
    if code in LIMIT_CODES or _LIMIT.search(text):
        return Refusal("limit", text)
    if code < 0 or code in UNAVAILABLE_CODES or _UNAVAILABLE.search(text):
        return Refusal("unavailable", text)
    return Refusal("invalid", text)
