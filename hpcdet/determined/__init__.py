"""The face of ``determined`` 0.38, for code that was written for it: the same modules and names.

Inside a rank ``import determined`` gives this package where the real one is not installed
(``hpcdet.process.determined_imports``); ``import hpcdet.determined`` gives it too. Submodules have
the names that they have there, and are imported when they are asked for, with the frameworks
that they need. What is not here says what there is in its place (``_absent``).
"""

from __future__ import annotations

import importlib
from typing import Any

from hpcdet.core import InvalidHP
from hpcdet.determined import core, errors, util
from hpcdet.determined._absent import absent
from hpcdet.determined._config import ExperimentConfig
from hpcdet.determined._import import import_from_path
from hpcdet.determined._info import ClusterInfo, TrialInfo, get_cluster_info

__all__ = [
    "LOG_FORMAT",
    "ClusterInfo",
    "ExperimentConfig",
    "InvalidHP",
    "TrialInfo",
    "core",
    "errors",
    "get_cluster_info",
    "import_from_path",
    "util",
]

LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"
"""For ``logging.basicConfig``."""

__version__ = "0.38.0"
"""Of the names that are here."""

_LATER = (
    *("common", "experimental", "keras", "launch", "lightning", "pytorch"),
    *("tensorboard", "transformers"),
)


def __getattr__(name: str) -> Any:
    """``det.pytorch`` and the like, imported when they are used."""
    if name in _LATER:
        return importlib.import_module(f"{__name__}.{name}")
    if name in ("TrialContext", "LegacyTrial"):
        pytorch = importlib.import_module("hpcdet.pytorch")
        return pytorch.PyTorchTrialContext if name == "TrialContext" else pytorch.PyTorchTrial
    absent(__name__, name)
