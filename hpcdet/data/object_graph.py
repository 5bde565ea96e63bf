"""The objects that can be reached from one through attributes, containers and closures."""

from __future__ import annotations

import dis
import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch

_MOST = 100_000  # objects looked at: what hides behind more than these is not found
_MOST_ITEMS = 1_000  # of one container: data sets keep their samples in lists
_MOST_WRAPPED = 50  # decorators around one function
_PLAIN = (str, bytes, bytearray, int, float, complex, type(None), np.ndarray, torch.Tensor)
_TORCHS_OWN = frozenset(vars(torch.nn.Module()))  # hooks and tables
_CLOSED = (*_PLAIN, type, ModuleType, BuiltinFunctionType, torch.dtype, torch.device)


def walk(
    roots: Mapping[str, Any], enters: Callable[[Any], bool] = lambda _: True
) -> Iterator[tuple[str, Any]]:
    """Every object behind the roots once, by its shortest path: ``trial.parts[0].noise``.

    Of modules of torch's, those inside them and what their own classes have added are taken. Plain
    values, arrays, tensors, classes and modules of Python are left out. Nothing is called: neither
    properties nor methods.

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


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: C901, PLR0912 - a case for each kind of object
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
    if isinstance(value, torch.nn.Module):
        for name, item in value._modules.items():
            yield f"{path}.{name}", item
        if _is_of_torch(type(value)):
            return
    if not isinstance(value, FunctionType | MethodType):
        for name, item in _attributes(value):
            yield f"{path}.{name}", item


def _is_of_torch(kind: type) -> bool:
    """Whether a class of modules and all it is made of are torch's: a container, a wrapper."""
    return all(one.__module__.split(".")[0] in ("torch", "builtins") for one in kind.__mro__)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    hidden = _TORCHS_OWN if isinstance(value, torch.nn.Module) else ()
    for name, item in list(getattr(value, "__dict__", {}).items()):
        if name not in hidden:
            yield name, item
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind):
            for name, slot in list(vars(kind).items()):
                if isinstance(slot, MemberDescriptorType):
                    try:
                        item = slot.__get__(value)
                    except AttributeError:  # not set yet
                        continue
                    yield name, item


def named(kind: type, without: Sequence[str] = ()) -> dict[str, Any]:
    """The global things that a class's methods name, by ``module.name``.

    Functions of the same file that they name are looked into as well. Those of classes that
    belong to torch or to hpcdet are left out.

    Args:
        without: methods that do not count.
    """
    found: dict[str, Any] = {}
    waiting = [
        method
        for base in kind.__mro__
        if base.__module__.split(".")[0] not in ("torch", "hpcdet", "builtins")
        for name, member in vars(base).items()
        if name not in without and (method := _function(member)) is not None
    ]
    seen: set[CodeType] = set()
    while waiting:
        function = waiting.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        for name in _names(function.__code__) & function.__globals__.keys():
            value = function.__globals__[name]
            if not isinstance(value, FunctionType):
                found[f"{function.__module__}.{name}"] = value
            elif value.__globals__ is function.__globals__:
                waiting.append(value)
    return found


def _function(member: Any) -> FunctionType | None:
    """Return the function behind a method, a property or a decorator with ``__wrapped__``.

    Objects of the user's are not asked: there are some that answer to any name.
    """
    for _ in range(_MOST_WRAPPED):
        inner: Any = None
        if isinstance(member, property):
            inner = member.fget
        elif isinstance(member, functools.partialmethod | functools.cached_property):
            inner = member.func
        elif isinstance(member, staticmethod | classmethod | MethodType):
            inner = member.__func__
        else:
            inner = inspect.getattr_static(member, "__wrapped__", None)
        if inner is None:
            break
        member = inner
    return member if isinstance(member, FunctionType) else None


def _names(code: CodeType) -> set[str]:
    """The globals that a function, or one inside it, reads."""
    own = {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    return own.union(*(_names(one) for one in code.co_consts if isinstance(one, CodeType)))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name of the function's that has no value yet
        return None
