"""Experiment configs: what people write, checked and completed (docs/config.md)."""

from hpcdet.config.editing import assign
from hpcdet.config.foreign import IGNORABLE
from hpcdet.config.loading import Loaded, load
from hpcdet.config.plan import plan
from hpcdet.config.schema import explain, schema

__all__ = ["IGNORABLE", "Loaded", "assign", "explain", "load", "plan", "schema"]
