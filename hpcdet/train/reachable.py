"""What can be reached from an object through attributes, containers and closures."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_MOST = 100_000  # objects looked at: what hides behind more than these is not found
_MOST_ITEMS = 1_000  # of one container: data sets keep their samples in lists
_PLAIN = (str, bytes, bytearray, int, float, complex, type(None), np.ndarray, torch.Tensor)
_CLOSED = (*_PLAIN, type, ModuleType, BuiltinFunctionType, torch.dtype, torch.device)


def walk(
    roots: Mapping[str, Any], enters: Callable[[Any], bool] = lambda _: True
) -> Iterator[tuple[str, Any]]:
    """Every object behind the roots once, by its shortest path: ``trial.parts[0].noise``.

    Plain values, arrays, tensors, classes and modules of Python are left out. Nothing is
    called: neither properties nor methods.

    Args:
        roots: where to begin, by the name to give it.
        enters: whether to look inside an object.
    """
    seen: dict[int, Any] = {}  # the objects are kept, so that no id is given twice
    waiting = deque(roots.items())
    while waiting and len(seen) < _MOST:
        path, value = waiting.popleft()
        if isinstance(value, _CLOSED) or id(value) in seen:
            continue
        seen[id(value)] = value
        yield path, value
        if enters(value):
            waiting.extend(_inside(path, value))


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for number, (key, item) in enumerate(value.items()):
            if number == _MOST_ITEMS:
                break
            yield f"{path}[{key!r}]", item
    elif isinstance(value, list | tuple | deque):
        for number, item in zip(range(_MOST_ITEMS), value, strict=False):
            yield f"{path}[{number}]", item
    elif isinstance(value, set | frozenset):
        for _, item in zip(range(_MOST_ITEMS), value, strict=False):
            yield f"{path}{{…}}", item
    elif isinstance(value, FunctionType):
        names: Sequence[str] = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=True):
            if (content := _content(cell)) is not None:
                yield f"{path}.{name}", content
    elif isinstance(value, MethodType):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield f"{path}.args", value.args
        yield f"{path}.keywords", value.keywords
    if not isinstance(value, FunctionType | MethodType):
        for name, item in list(getattr(value, "__dict__", {}).items()):
            yield f"{path}.{name}", item


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name of the function's that has no value yet
        return None
