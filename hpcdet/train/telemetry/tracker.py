"""The attempt's journal, written by rank 0. Tracking never stops training.

A record that cannot be written (disk full, quota) waits in memory and is tried again with the
next; only when very many wait are the oldest dropped, which is said once. Checkpoints carry the
metrics that wait, so that an attempt that goes on from one can tell them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcdet.process.console import say
from hpcdet.store.fs import journal, json_record

_MOST_WAITING = 100_000
_MOST_CARRIED = 10_000
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class Tracker:
    """Appends records to a journal. Without a path, nothing is written anywhere.

    Validations, on which searchers decide, are durable as soon as the disk allows it. Threads may
    share one.

    Args:
        validated: called once validations are durable.
    """

    def __init__(self, path: Path | None, validated: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._validated = validated
        self._news = False
        self._writer: journal.Writer | None = None
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque(maxlen=_MOST_WAITING)
        self._complained = False
        self._not_finite: set[str] = set()  # groups of metrics that were so at their last report
        self._lock = threading.RLock()

    def record(self, kind: str, *, sync: bool = False, **fields: Any) -> None:
        """Add a record; with ``sync``, it is durable on return if the disk allows it."""
        if self._path is None:
            return
        with self._lock:
            self._waiting.append((kind, fields))
            self.flush(sync=sync)

    def flush(self, *, sync: bool = False) -> int:
        """Write what waits. Returns the journal's length in bytes."""
        with self._lock:
            return self._flush(sync) if self._path is not None else 0

    def _flush(self, sync: bool) -> int:
        assert self._path is not None
        try:
            if self._writer is None:
                self._writer = journal.Writer(self._path)
            while self._waiting:
                kind, fields = self._waiting[0]
                self._writer.append(kind, **fields)
                self._waiting.popleft()
                self._news |= kind == "metrics" and fields.get("group") == "validation"
            if sync or self._news:
                self._writer.sync()
            if self._news:
                self._news = False
                self._validated()
        except OSError as error:
            if not self._complained:
                self._complained = True
                say(f"the journal cannot be written: {error}")
        return self._writer.offset if self._writer else 0

    def untold(self) -> list[dict[str, Any]]:
        """Fields of the metrics that could not be written so far, for ``retell``."""
        with self._lock:
            metrics = [fields for kind, fields in self._waiting if kind == "metrics"]
        return metrics[-_MOST_CARRIED:]

    def retell(self, metrics: Iterable[Mapping[str, Any]]) -> None:
        """Record metrics that an attempt before this one could not."""
        with self._lock:
            self._waiting.extend(("metrics", dict(fields)) for fields in metrics)
            self.flush()

    def look_for_nan(self, group: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Say that metrics have stopped to be numbers, when they do; it ends nothing.

        Args:
            metrics: as ``plain`` makes them.
        """
        names = sorted(name for name, value in metrics.items() if value in _NOT_FINITE)
        if names and group not in self._not_finite:
            self.record("not_finite", group=group, step=step, names=names)
            text = f"{group} after {step} batches: {', '.join(names)} not finite"
            say(f"{text}; training goes on")
        self._not_finite = (self._not_finite - {group}) | ({group} if names else set())

    def close(self) -> None:
        """Write what waits, durably, and close the file."""
        with self._lock:
            self.flush(sync=True)
            if self._writer is not None:
                self._writer.close()
                self._writer = None
                self._path = None


def plain(metrics: Mapping[str, Any], kind: str = "metric") -> dict[str, Any]:
    """Metrics as JSON: numbers, tensors and arrays of one element as numbers; structure is kept.

    Args:
        kind: what they are, for people.

    Raises:
        TypeError: a value that is none of these, with its name.
    """
    return {str(name): _plain(value, f"{kind} {name}") for name, value in metrics.items()}


def _plain(value: Any, name: str) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return json_record.number(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{name}[{at}]") for at, item in enumerate(value)]
    if hasattr(value, "tolist"):  # tensors, numpy arrays and scalars
        return _plain(value.tolist(), name)
    raise TypeError(f"{name} is a {type(value).__name__}; report numbers, lists or dicts")


def finite(value: Any) -> float | None:
    """A metric as a number, if it is one; NaN counts as one."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
