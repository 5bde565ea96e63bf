"""The parts that messages consist of, the same on both sides."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch

MOST_BYTES = 4 << 30
"""The longest message: far more than ranks exchange beside the training."""

DEEPEST = 200
"""So many containers may stand in each other."""

INT = struct.Struct("<q")
LENGTH = struct.Struct("<Q")
FLOAT = struct.Struct("<d")

TORCH_TYPES = {
    str(one).removeprefix("torch."): one
    for one in vars(torch).values()
    if isinstance(one, torch.dtype)
}
TORCH_NAMES = {one: name for name, one in TORCH_TYPES.items()}

_PLAIN_KEYS = frozenset({type(None), bool, int, float, str, bytes})


def is_key(value: Any) -> bool:
    """Whether a value may be a key: plain, a numpy scalar, or a tuple of these."""
    if type(value) is tuple:
        return all(map(is_key, value))
    return type(value) in _PLAIN_KEYS or isinstance(value, np.generic)


def named(value: Any) -> str:
    """A value by its type, for an error."""
    kind = type(value)
    detail = f" of {value.dtype}" if isinstance(value, np.ndarray | np.generic) else ""
    return f"a {kind.__module__}.{kind.__qualname__}{detail}".replace(" builtins.", " ")
