"""``determined.util``: what code of trials uses of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hpcdet.determined._absent import absent

__all__ = ["is_numerical_scalar", "json_encode", "merge_dicts"]


def merge_dicts(base_dict: Mapping[Any, Any], source_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """A new dict: ``source_dict`` laid over ``base_dict``, dicts in them likewise."""
    merged = copy.deepcopy(dict(base_dict))
    for key, value in source_dict.items():
        inner = merged.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            merged[key] = merge_dicts(inner, value)
        else:
            merged[key] = value
    return merged


def json_encode(obj: Any, indent: str | None = None, sort_keys: bool = False) -> str:
    """JSON of plain values, of arrays and numbers of numpy; the rest as text."""
    return json.dumps(obj, indent=indent, sort_keys=sort_keys, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return list(value)
    return str(value)


def is_numerical_scalar(n: Any) -> bool:
    """A number, or an array without dimensions that holds one."""
    if isinstance(n, np.ndarray):
        return n.ndim == 0 and np.issubdtype(n.dtype, np.number)
    return isinstance(n, int | float | np.number)


def __getattr__(name: str) -> Any:
    absent(__name__, name)
