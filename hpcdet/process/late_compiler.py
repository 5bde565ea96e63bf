"""``torch._dynamo`` as it is before anybody compiles: answered for, and imported at first need.

Each optimizer asks torch's compiler to leave it alone, so each process that trains imports it:
836 modules and 1.8 s of processor time with torch 2.13, with nothing to compile. Until it is
loaded, four questions have answers that need no compiler; every other use of it loads it.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, ParamSpec

_NAME = "torch._dynamo"
_P = ParamSpec("_P")


def put_off() -> None:
    """Let what asks for ``torch._dynamo`` in this process load it only where it is needed.

    Nothing is put off where there is no torch, or where the compiler is loaded already.
    """
    if _NAME in sys.modules or (torch := PathFinder.find_spec("torch")) is None:
        return
    found = PathFinder.find_spec(_NAME, torch.submodule_search_locations)
    if found is None or found.submodule_search_locations is None:
        return
    module = importlib.util.module_from_spec(found)
    module.__class__ = _Unloaded
    sys.modules[_NAME] = module
    sys.meta_path.insert(0, _Submodules())


class _Unloaded(ModuleType):
    """The module itself before it is executed; the first use executes it in place."""

    def __getattr__(self, name: str) -> Any:
        if _Loading.thread == threading.get_ident():
            raise AttributeError(f"{_NAME} has no {name!r} yet: it is being imported", name=name)
        if name in _ANSWERS:
            vars(sys.modules["torch"])["_dynamo"] = self  # else torch imports it at each use
            return _ANSWERS[name]
        _use(self, name)
        return getattr(self, name)


class _Submodules(MetaPathFinder):
    """A finder that executes the module before the first of its submodules is imported.

    The module itself imports most of them; executing one of those once more would make a second
    module of that name.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        module = sys.modules.get(_NAME)
        if type(module) is not _Unloaded or not name.startswith(f"{_NAME}."):
            return None
        if _Loading.thread == threading.get_ident():
            return None
        _use(module, "__path__")
        there = sys.modules.get(name)
        if there is None:
            return None
        spec = ModuleSpec(name, _There(there))
        # the import takes that of a module which is there; a config refuses new attributes
        vars(there)["__spec__"] = spec
        return spec


class _There(Loader):
    """The loader of a module that is imported already, which it leaves as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self._spec


class _Loading:
    """Which thread executes the module."""

    lock = threading.Lock()
    thread: int | None = None


def _use(module: ModuleType, name: str) -> None:
    """Execute the module, unless another thread does and its name ``name`` is there."""
    # the other thread may wait for a module that this one is importing
    while not _Loading.lock.acquire(timeout=0.1):
        if name in vars(module):
            return
    try:
        if type(module) is _Unloaded:
            _load(module)
    finally:
        _Loading.lock.release()


def _load(module: ModuleType) -> None:
    """Execute the module, which is a common one from then on."""
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    _Loading.thread = threading.get_ident()
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(_NAME, None)  # as after every import that fails
        vars(sys.modules["torch"]).pop("_dynamo", None)
        raise
    finally:
        module.__class__ = ModuleType
        _Loading.thread = None
    sys.modules["torch"].__dict__["_dynamo"] = module


def _disable(
    fn: Callable[_P, Any] | None = None,
    recursive: bool = True,
    **options: Any,
) -> Any:
    """Let the compiler leave a function alone, as soon as there is a compiler."""
    module = sys.modules[_NAME]
    if not isinstance(fn, FunctionType | MethodType):  # a class is wrapped in another way
        _ = module.config
        return module.disable(fn, recursive, **options)
    disabled: Callable[_P, Any] | None = None

    @functools.wraps(fn)
    def undecided(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        nonlocal disabled
        if disabled is None:
            if type(module) is _Unloaded:
                return fn(*args, **kwargs)
            disabled = module.disable(fn, recursive, **options)
        return disabled(*args, **kwargs)

    return undecided


# What torch itself asks while nothing is compiled: by optimizers, DistributedDataParallel and
# process groups. The second's answer is the default of a setting that can only be made by loading.
_ANSWERS: dict[str, Any] = {
    "disable": _disable,
    "graph_break": lambda *_args, **_kwargs: None,
    "utils": SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"),
    "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None),
}
