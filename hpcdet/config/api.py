"""Experiment configs as users write them, checked and completed (docs/reference/config.md)."""

from hpcdet.config.check.plan import plan
from hpcdet.config.determined.unsupported_keys import IGNORABLE
from hpcdet.config.load.edit_file import assign
from hpcdet.config.load.load_config import LoadedConfig, load
from hpcdet.config.schema import explain, schema

__all__ = ["IGNORABLE", "LoadedConfig", "assign", "explain", "load", "plan", "schema"]
