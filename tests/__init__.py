"""The tests: one folder per package or subject, and beside them what several of them use."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
TOP = TESTS.parent
RECORDED = TESTS / "recorded"
"""Real outputs and files of earlier versions, byte for byte."""
