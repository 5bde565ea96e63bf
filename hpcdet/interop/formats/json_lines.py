"""JSON Lines of an experiment's tables: a JSON object for each row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcdet.interop.formats.exported import ExperimentExport
from hpcdet.interop.formats.exported_tables import TABLES, ExportedTable
from hpcdet.store.fs import files, json_record


def export(what: ExperimentExport, to: str) -> Path:
    """Write ``TO/ID/TABLE.jsonl`` for each table; returns the folder.

    Numbers that are not finite are the texts ``NaN``, ``Infinity`` and ``-Infinity``.
    """
    folder = Path(to) / what.id
    for name, table in TABLES.items():
        files.replace(folder / f"{name}.jsonl", _pieces(table, what))
    return folder


def _pieces(table: ExportedTable, what: ExperimentExport) -> Iterator[bytes]:
    for row in table.rows(what):
        finite = {name: _finite(value) for name, value in row.items()}
        text = json.dumps(finite, ensure_ascii=False, allow_nan=False)
        yield f"{text}\n".encode(errors="replace")


def _finite(value: Any) -> Any:
    return json_record.number(value) if isinstance(value, float) else value
