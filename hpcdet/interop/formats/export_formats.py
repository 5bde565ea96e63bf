"""The table of exports: what each format writes, where, and which extra it needs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcdet.errors import ConfigError

if TYPE_CHECKING:  # the table is read by ``--help``
    from hpcdet.interop.formats.exported import ExperimentExport


@dataclass(frozen=True)
class ExportFormat:
    """A format.

    Attributes:
        module: has ``export(what, to)``, which returns what was written.
        to: what DEST is.
        extra: of hpcdet, which installs the library; "" if none is needed.
        together: experiments are written at once, as sums, and not one after the other.
    """

    module: str
    to: str
    extra: str = ""
    together: bool = False


_HERE = "hpcdet.interop.formats"

FORMATS = {
    "tensorboard": ExportFormat("hpcdet.interop.tensorboard", "a folder, for --logdir"),
    "csv": ExportFormat(f"{_HERE}.csv_files", "a folder, for ID/TABLE.csv"),
    "jsonl": ExportFormat(f"{_HERE}.json_lines", "a folder, for ID/TABLE.jsonl"),
    "parquet": ExportFormat(f"{_HERE}.parquet", "a folder, for TABLE/experiment=ID", "parquet"),
    "mlflow": ExportFormat(f"{_HERE}.mlflow_runs", "a tracking address, or a file", "mlflow"),
    "wandb": ExportFormat(f"{_HERE}.wandb_runs", "a folder, for wandb/offline-run-*", "wandb"),
    "optuna": ExportFormat(f"{_HERE}.optuna_study", "a storage's address, or a file", "search"),
    "prometheus": ExportFormat(f"{_HERE}.prometheus", "a file NAME.prom", together=True),
    "ro-crate": ExportFormat(f"{_HERE}.ro_crate", "a folder, for the crate ID"),
}


def export(name: str, whole: Sequence[ExperimentExport], to: str) -> str:
    """Write experiments in a format; returns what was written, as people name it.

    Raises:
        ConfigError: the library that the format needs is not installed.
        HpcdetError: as the format's module.
        OSError: a file cannot be written.
    """
    form = FORMATS[name]
    module = importlib.import_module(form.module)
    try:
        if form.together:
            return str(module.export(whole, to))
        return [str(module.export(one, to)) for one in whole][-1]
    except ImportError as error:
        if not form.extra:
            raise
        hint = f"python -m pip install 'hpcdet[{form.extra}]'"
        what = f"it needs {error.name}, which is not installed"
        raise ConfigError(what, where=name, hint=hint) from error
