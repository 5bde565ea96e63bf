"""``determined.common.util``: what code of trials uses of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any, TypeVar

import yaml

from hpcdet.determined._absent import absent

T = TypeVar("T")

_LEGACY_TRAINING = "training"
_LEGACY_VALIDATION = "validation"


def chunks(lst: Sequence[T], chunk_size: int) -> Iterator[Sequence[T]]:
    """Slices of so many items; the last one may have fewer."""
    for start in range(0, len(lst), chunk_size):
        yield lst[start : start + chunk_size]


def yaml_safe_load(f: IO[Any] | str) -> Any:
    """Plain data of a YAML text or file."""
    return yaml.safe_load(f)


def yaml_safe_dump(data: Any, stream: IO[Any] | None = None, **options: Any) -> str | None:
    """The YAML text of plain data, or written into a stream."""
    return yaml.safe_dump(data, stream, **options)


def strtobool(val: str) -> bool:
    """``y``, ``yes``, ``t``, ``true``, ``on``, ``1``, and their opposites.

    Raises:
        ValueError: it is none of them.
    """
    word = val.lower()
    if word in ("y", "yes", "t", "true", "on", "1"):
        return True
    if word in ("n", "no", "f", "false", "off", "0"):
        return False
    raise ValueError(f"{val!r} is neither true nor false")


def __getattr__(name: str) -> Any:
    absent(__name__, name)
