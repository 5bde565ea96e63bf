"""Experiment configs: what people write, checked and completed (docs/config.md)."""

from hpcdet.config.loading import Loaded, load

__all__ = ["Loaded", "load"]
