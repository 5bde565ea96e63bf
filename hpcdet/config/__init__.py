"""Experiment configs: what people write, checked and completed (docs/config.md)."""

from hpcdet.config.check.plan import plan
from hpcdet.config.determined.foreign_keys import IGNORABLE
from hpcdet.config.load.edit_file import assign
from hpcdet.config.load.load_config import Loaded, load
from hpcdet.config.schema import explain, schema

__all__ = ["IGNORABLE", "Loaded", "assign", "explain", "load", "plan", "schema"]
