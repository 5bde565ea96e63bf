"""``determined.experimental``: ``core_v2``, and ``client`` with its names here, too."""

from __future__ import annotations

import importlib
from typing import Any

from hpcdet.determined._absent import absent

_OF_CLIENT = (
    *("Checkpoint", "Determined", "Experiment", "ExperimentReference", "Model", "ModelOrderBy"),
    *("ModelVersion", "OrderBy", "Trial", "TrialOrderBy", "TrialReference", "TrialSortBy"),
)


def __getattr__(name: str) -> Any:
    if name in ("client", "core_v2"):
        return importlib.import_module(f"{__name__}.{name}")
    if name in _OF_CLIENT:
        return getattr(importlib.import_module(f"{__name__}.client"), name)
    absent(__name__, name)
