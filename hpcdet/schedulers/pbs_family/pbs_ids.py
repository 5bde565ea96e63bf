"""Ids of jobs and subjobs: ``12.vm`` is a job, ``12[].vm`` an array, ``12[3].vm`` one of it."""

from __future__ import annotations

import re

_ID = re.compile(r"(\d+)(?:\[(\d*)\])?(?:\.([A-Za-z0-9][A-Za-z0-9_.-]*))?")


def is_array(job: str) -> bool:
    """True for the id of a whole array."""
    return "[]" in job


def task_id(job: str, index: int) -> str:
    """Return the id of one task of a job; that of a job without an array is the job's own."""
    return job.replace("[]", f"[{index}]", 1) if is_array(job) else job


def task_range(job: str, first: int, last: int) -> str:
    """Return how the commands name the subjobs of an array from ``first`` to ``last``."""
    return job.replace("[]", f"[{first}-{last}]" if last > first else f"[{first}]", 1)


def job_and_index(task: str) -> tuple[str, int]:
    """Return the job of a task and the task's index, which is 0 without an array."""
    found = _ID.fullmatch(task)
    if found is None or not found[2]:
        return task, 0
    return task.replace(f"[{found[2]}]", "[]", 1), int(found[2])


def parse(text: str, *, bare: bool = False) -> str | None:
    """Return the id in a line that a command printed; None if it is none.

    Args:
        bare: it may lack the server's name.
    """
    word = text.strip()
    found = _ID.fullmatch(word)
    return word if found is not None and (bare or found[3]) else None


def key(task: str) -> str:
    """Return what tells an id from others of its server, however the server's name is written."""
    found = _ID.match(task)
    if found is None:
        return task
    return found[1] if found[2] is None else f"{found[1]}[{found[2]}]"
