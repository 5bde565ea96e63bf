"""States for tests of checkpoints: made by hypothesis, compared bit for bit, saved by ranks."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from hypothesis import strategies as st

from hpcdet.checkpoint import Exchange, Swap
from hpcdet.checkpoint.write.sharded_digests import WholesFailed

Result = TypeVar("Result")

TORCH_TYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.complex64, torch.complex128, torch.complex32),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64),
]
NUMPY_TYPES = ["<f4", ">f8", "<c16", "|u1", "|b1", "<i8", ">i2", "<U3", "|S4", "<M8[ns]", "<f2"]
SHAPES = [(), (0,), (1,), (5,), (2, 3), (3, 0, 2), (2, 1, 4)]


def tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Random bits as a tensor, sometimes not contiguous."""
    width = torch.empty(0, dtype=dtype).element_size()
    count = int(np.prod(shape, dtype=int))
    raw = np.random.default_rng(seed).integers(0, 256, count * width, dtype=np.uint8)
    if dtype == torch.bool:
        raw &= 1
    made = torch.empty(shape, dtype=dtype)
    if count:
        made = torch.from_numpy(raw).view(dtype).reshape(shape)
    return made.transpose(0, -1) if seed % 2 and len(shape) > 1 else made


def array(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    """Random numbers of a numpy type; a scalar for every third seed and shape ()."""
    made = np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)
    return made[()] if shape == () and seed % 3 == 0 else np.asarray(made, dtype)


seeds = st.integers(0, 9)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=9),
    st.builds(tensor, st.sampled_from(TORCH_TYPES), st.sampled_from(SHAPES), seeds),
    st.builds(array, st.sampled_from(NUMPY_TYPES), st.sampled_from(SHAPES), seeds),
)
keys = st.one_of(
    st.text(max_size=4),
    st.sampled_from(["", ".", "..", "a/b", "#0", "%", "0.weight"]),
    st.integers(),
)
trees = st.dictionaries(
    keys,
    st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.tuples(inner, inner),
            st.dictionaries(keys, inner, max_size=3),
            st.dictionaries(keys, inner, max_size=2).map(OrderedDict),
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def same(one: Any, other: Any) -> bool:
    """Equal in type, structure, order and every bit; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(
            same(a, b) for a, b in zip(one.values(), other.values(), strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and _bits(one) == _bits(other)
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype.str, one.shape) == (other.dtype.str, other.shape) and (
            one.tobytes() == other.tobytes()
        )
    return repr(one) == repr(other)


def _bits(value: torch.Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def ranks(world: int, work: Callable[[int, Exchange], Result]) -> list[Result]:
    """Run ``work(rank, exchange)`` as so many ranks, threads of this process."""
    barrier = threading.Barrier(world, timeout=120)
    slots: list[Any] = [None] * world

    def run(rank: int) -> Result:
        def exchange(value: Any) -> list[Any]:
            slots[rank] = value
            barrier.wait()
            everyone = list(slots)
            barrier.wait()
            return everyone

        return work(rank, exchange)

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(run, range(world)))


def swapping(rank: int, exchange: Exchange) -> Swap:
    """A rank's swap by means of its exchange."""

    def swap(pieces: Sequence[torch.Tensor] | None, _: Sequence[int]) -> Sequence[torch.Tensor]:
        everyone = exchange(pieces)
        if any(each is None for each in everyone):
            raise WholesFailed(None)
        return [each[rank] for each in everyone]

    return swap
