"""Every source of random numbers that training may draw from, as plain state."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np
import torch

from hpcdet.data.sample_order import subseed

Generator = np.random.Generator | np.random.RandomState | torch.Generator | random.Random
State = dict[str, Any]

_OF_ALL = (random._inst, np.random.mtrand._rand, torch.default_generator)


def is_own(value: Any) -> TypeGuard[Generator]:
    """Return True if a value is a random generator of the user's, not one of the libraries'."""
    return isinstance(value, Generator) and not any(value is one for one in _OF_ALL)


def reseed(generator: Generator, seed: int) -> None:
    """Begin a generator anew; ``seed``: any non-negative integer."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed % 2**63)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed % 2**32)
    else:
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state


def seed_all(seed: int) -> None:
    """Seed python, numpy and torch (all devices); ``seed``: any non-negative integer."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    with _traces_cut():
        torch.manual_seed(seed % 2**63)


@contextlib.contextmanager
def _traces_cut() -> Iterator[None]:
    """Keep stacks of callers empty: torch takes one for each kind of device that it seeds later.

    Each would have the source of all its frames looked for, a hundred files on a cold cache.
    """
    before = vars(sys).get("tracebacklimit")
    sys.tracebacklimit = 0
    try:
        yield
    finally:
        if before is None:
            del sys.tracebacklimit
        else:
            sys.tracebacklimit = before


def plant(seed: int, generators: Mapping[str, Generator] | None = None) -> None:
    """Seed like ``seed_all``, but only this process's own device and the registered generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed % 2**63)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed % 2**63)
    for name, generator in (generators or {}).items():
        reseed(generator, subseed("generator", name, seed))


def capture_cpu() -> tuple[Any, Any, torch.Tensor]:
    """Return the state that drawing a sample may change, for ``restore_cpu``; not to be saved."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def restore_cpu(state: tuple[Any, Any, torch.Tensor]) -> None:
    """Undo what happened to the generators since ``capture_cpu``."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def capture(generators: Mapping[str, Generator] | None = None) -> State:
    """The state of all generators, registered ones included: nested dicts, lists and tensors."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, gauss_next = random.getstate()
    state: State = {
        "python": [version, np.array(words, dtype=np.uint32), gauss_next],
        "numpy": [str(kind), np.asarray(keys), int(position), int(has_gauss), float(gauss)],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    if generators:
        state["registered"] = {name: state_of(one) for name, one in generators.items()}
    return state


def restore(state: State, generators: Mapping[str, Generator] | None = None) -> None:
    """Put all generators back to a captured state."""
    version, words, gauss_next = state["python"]
    random.setstate((version, tuple(int(word) for word in words), gauss_next))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
    for name, one in (generators or {}).items():
        if name in state.get("registered", {}):
            restore_one(one, state["registered"][name])


def state_of(generator: Generator) -> Any:
    """One generator's state, as plain values and tensors."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        version, words, gauss_next = generator.getstate()
        return [version, list(words), gauss_next]
    if isinstance(generator, np.random.RandomState):
        return dict(generator.get_state(legacy=False))
    return dict(generator.bit_generator.state)


def restore_one(generator: Generator, state: Any) -> None:
    """The inverse of ``state_of``."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate((state[0], tuple(state[1]), state[2]))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state
