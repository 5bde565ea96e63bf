"""CSV files (RFC 4180) of an experiment's tables, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcdet.interop.formats.exported import ExperimentExport, batches, flat
from hpcdet.interop.formats.exported_tables import TABLES, ExportedTable, Row, as_json
from hpcdet.read.lookup.escapes import inert
from hpcdet.store.fs import files, json_record

_ROWS = 1000
_PARAMS = "hyperparameters"


def export(what: ExperimentExport, to: str) -> Path:
    """Write ``TO/ID/TABLE.csv`` for each table; returns the folder.

    Hyperparameters have a column each. Text that a spreadsheet would take for a formula begins
    with an apostrophe; numbers that are not finite are ``NaN``, ``Infinity``, ``-Infinity``.
    """
    folder = Path(to) / what.id
    for name, table in TABLES.items():
        files.replace(folder / f"{name}.csv", _pieces(table, what))
    return folder


def _pieces(table: ExportedTable, what: ExperimentExport) -> Iterator[bytes]:
    rows = table.rows(what)
    columns = {name: kind for name, kind in table.columns.items() if name != _PARAMS}
    params: list[str] = []
    if _PARAMS in table.columns:
        whole = list(rows)
        found = (dict(flat(row[_PARAMS])) for row in whole)
        params = sorted({name for each in found for name in each})
        rows = iter(whole)
    yield _lines([[inert(name) for name in (*columns, *(f"{_PARAMS}.{one}" for one in params))]])
    for batch in batches(rows, _ROWS):
        yield _lines([_cells(row, columns, params) for row in batch])


def _cells(row: Row, columns: Mapping[str, type], params: Iterable[str]) -> list[Any]:
    known = dict(flat(row[_PARAMS])) if _PARAMS in row else {}
    return [
        *(
            _cell(as_json(row[name]) if kind is object else row[name])
            for name, kind in columns.items()
        ),
        *(_cell(known.get(name)) for name in params),
    ]


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, float):
        return json_record.number(value)
    return inert(value if isinstance(value, str) else as_json(value))


def _lines(rows: Iterable[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode(errors="replace")
