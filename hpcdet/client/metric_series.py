"""Values that trials have reported, as rows, arrays and data frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from hpcdet.errors import UsageError
from hpcdet.read.experiment import series
from hpcdet.read.views.items import encode
from hpcdet.read.views.measured import MetricView
from hpcdet.store.fs import json_record

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Metrics(Sequence[MetricView]):
    """Rows of metrics, in the order reported; ``x`` of each is its place along the axis asked for.

    Attributes:
        rows: the items of ``hpcdet metrics --x``.
    """

    rows: tuple[MetricView, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[MetricView]:
        return iter(self.rows)

    @overload
    def __getitem__(self, at: int) -> MetricView: ...
    @overload
    def __getitem__(self, at: slice) -> Metrics: ...
    def __getitem__(self, at: int | slice) -> MetricView | Metrics:
        return Metrics(self.rows[at]) if isinstance(at, slice) else self.rows[at]

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return an array of records ``trial, group, step, name, x, value, time, attempt``.

        ``x`` and ``value`` are float64: NaN where the place is unknown, or the value is no number.
        ``time`` is in UTC, to the microsecond.
        """
        import numpy as np

        kinds = [("trial", "i8"), ("group", "U"), ("step", "i8"), ("name", "U")]
        kinds += [("x", "f8"), ("value", "f8"), ("time", "M8[us]"), ("attempt", "i8")]
        widths = {
            name: max((len(getattr(r, name)) for r in self.rows), default=1) for name in _TEXT
        }
        form = [(name, f"{kind}{widths.get(name, '')}") for name, kind in kinds]
        return np.array([_record(row) for row in self.rows], dtype=form)

    def pandas(self) -> pd.DataFrame:
        """Return a data frame with a column for each key of the items.

        Values that are no numbers (matrices, texts) stay what was reported; times are Timestamps.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise UsageError("pandas is not installed", hint="pip install pandas") from error
        frame = pd.DataFrame([{**encode(row), "value": _value(row.value)} for row in self.rows])
        if len(frame):
            frame["time"] = pd.to_datetime(frame["time"], utc=True, format="ISO8601")
        return frame


_TEXT = ("group", "name")


def _record(row: MetricView) -> tuple[Any, ...]:
    amount, x = series.number(row.value), getattr(row, "x", None)
    value, place = (float("nan") if one is None else one for one in (amount, x))
    time = row.time.removesuffix("Z")
    return row.trial, row.group, row.step, row.name, place, value, time, row.attempt


def _value(value: Any) -> Any:
    """Return a value with NaN and infinities, which journals have as words, as floats."""
    return json_record.value(value) if value in ("NaN", "Infinity", "-Infinity") else value
