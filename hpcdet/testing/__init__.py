"""For those who write a backend: what every one of them must do alike."""

from __future__ import annotations

from hpcdet.testing.conformance import Conformance

__all__ = ["Conformance"]
