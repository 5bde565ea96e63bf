"""Views of every experiment below a root; unreadable ones are reported and skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from hpcdet.errors import HpcdetError
from hpcdet.store.folder.layout import ExperimentPaths

T = TypeVar("T")

UNREADABLE = (
    HpcdetError,
    OSError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What views raise for files that are not what hpcdet writes."""


def of_each(
    experiments: Iterable[ExperimentPaths], view: Callable[[ExperimentPaths], T]
) -> tuple[list[T], list[str]]:
    """Return a view of each experiment, and a line about each unreadable one."""
    items: list[T] = []
    warnings: list[str] = []
    for paths in experiments:
        try:
            items.append(view(paths))
        except UNREADABLE as error:
            warnings.append(left_out(paths, error))
    return items, warnings


def left_out(paths: ExperimentPaths, error: Exception) -> str:
    """Return a line on why an experiment is left out, with the file at fault."""
    if isinstance(error, HpcdetError):
        what, where = error.what, error.where
    elif isinstance(error, OSError):
        what, where = error.strerror or str(error), str(error.filename or "")
    else:
        what, where = f"its files do not fit together ({type(error).__name__}: {error})", ""
    file = where.removeprefix(f"{paths.root}/")
    line = f"{file}: {what}" if where else what
    return " ".join(f"{paths.id} is left out: {line}".split())[:400]
