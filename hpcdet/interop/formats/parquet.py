"""Parquet files of experiments' tables, one dataset for all experiments (needs pyarrow)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hpcdet.interop.formats.exported import ExperimentExport, batches
from hpcdet.interop.formats.exported_tables import TABLES, ExportedTable, Row, as_json, sound
from hpcdet.store.fs import files

if TYPE_CHECKING:
    import pyarrow

_ROWS = 50_000
_KEY = "experiment"
_UTC = "_utc"


def export(what: ExperimentExport, to: str) -> Path:
    """Write ``TO/TABLE/experiment=ID/data.parquet`` for each table; returns TO.

    ``pyarrow.dataset.dataset(TO/TABLE, partitioning="hive")`` reads those of all experiments.
    Columns of any JSON value hold JSON as text; times are of UTC, to the microsecond.

    Raises:
        ImportError: there is no pyarrow.
    """
    import pyarrow  # noqa: F401  # before anything is written

    for name, table in TABLES.items():
        folder = Path(to) / name / f"{_KEY}={quote(what.id, safe='')}"
        files.make_folder(folder)
        temporary = folder / f".data.parquet.{secrets.token_hex(4)}.tmp"
        try:
            _write(temporary, table, what)
            os.replace(temporary, folder / "data.parquet")
        finally:
            temporary.unlink(missing_ok=True)
    return Path(to)


def _write(path: Path, table: ExportedTable, what: ExperimentExport) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), object: pa.string()}
    types = {
        name: pa.timestamp("us", "UTC") if name.endswith(_UTC) else kinds[kind]
        for name, kind in table.columns.items()
        if name != _KEY  # which the folder's name says
    }
    about = {"hpcdet.id": what.id, "hpcdet.created": what.created}
    schema = pa.schema(types.items(), metadata=about)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.FILE_MODE)
    with os.fdopen(fd, "wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in batches(table.rows(what), _ROWS):
                writer.write_table(_table(batch, types, table.columns, schema))
        file.flush()
        os.fsync(fd)


def _table(
    rows: list[Row],
    types: Iterable[str],
    kinds: Mapping[str, type],
    schema: pyarrow.Schema,
) -> pyarrow.Table:
    import pyarrow as pa

    columns: dict[str, list[Any]] = {}
    for name in types:
        values = [row[name] for row in rows]
        if kinds[name] is object:
            values = [sound(as_json(one)) or None for one in values]
        elif name.endswith(_UTC):
            values = [None if one is None else datetime.fromisoformat(one) for one in values]
        elif kinds[name] is str:
            values = [None if one is None else sound(one) for one in values]
        columns[name] = values
    return pa.Table.from_pydict(columns, schema=schema)
