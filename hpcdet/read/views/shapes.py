"""Formatting of nested hyperparameters (choices, repeats) in one line for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def shape(value: Any, leaf: Callable[[Any], str]) -> str:
    """Format ``convolution(channels=16 kernel=3), pooling(kind=max)``; ``leaf`` formats leaves."""
    if isinstance(value, dict) and value:
        name = shape(value["name"], leaf) if "name" in value else ""
        parts = [f"{leaf(key)}={shape(each, leaf)}" for key, each in value.items() if key != "name"]
        return name if name and not parts else f"{name}({' '.join(parts)})"
    if isinstance(value, list | tuple) and any(isinstance(each, dict) for each in value):
        return ", ".join(shape(each, leaf) for each in value)
    return leaf(value)
