"""State as a tree of plain values and leaves of bytes, without pickle.

A *tree* is nested ``dict``, ``OrderedDict``, ``list``, ``tuple`` of ``None``, ``bool``, ``int``,
``float``, ``str``, ``bytes``, numpy arrays and scalars, and tensors. It is taken apart into a
*skeleton*, which is JSON, and *leaves*, which are bytes with a type and a shape. The skeleton
names the leaves::

    {"lr": 0.1, "w": tensor}   ->   {"dict": [["lr", 0.1], ["w", {"tensor": "shared/w"}]]}

Plain JSON values and lists stand for themselves; everything else is an object with one key.
A leaf's name is its path in the tree, so that people find it in the HDF5 file. The same tensor
at two places (tied weights) is one leaf, and one tensor again after loading.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from hpcdet.errors import HpcdetError

_SCALARS = (type(None), bool, int, str)
TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
NUMPY_KINDS = "biufcSUMm"


class StateError(HpcdetError):
    """The state holds something that cannot be saved, or the ranks disagree about its shape."""

    code = "STATE"


@dataclass(frozen=True, eq=False)
class Sharded:
    """This rank's rows of a tensor of which every rank has some; none of them has it whole.

    Rows are along the first axis. Which rank has which is a function of their number and the
    number of ranks (``rows``).

    Attributes:
        local: the rows, on whatever device.
        shape: of the whole tensor.
        start: number of the first row.
    """

    local: torch.Tensor
    shape: tuple[int, ...]
    start: int


def rows(count: int, rank: int, world: int) -> tuple[int, int]:
    """First and last row (exclusive) of a rank's part of ``count`` rows: as torch shards them."""
    each = -(-count // world)
    return min(rank * each, count), min((rank + 1) * each, count)


@dataclass(frozen=True)
class Part:
    """The place of a leaf in a whole tensor: the whole's ``shape``, and the leaf's first row."""

    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class Leaf:
    """Bytes with a type and a shape.

    Attributes:
        name: path in the tree, ``shared/model/conv1.weight``.
        kind: ``tensor``, ``array``, ``scalar`` (numpy) or ``bytes``.
        dtype: ``float32``, ``bfloat16`` … of torch; ``<f4``, ``>i8``, ``|S3`` … of numpy.
        shape: lengths of the axes; ``()`` for a single value.
        nbytes: size of the data in bytes.
        part: of what it is a part; None for a leaf that is whole.
        source: what the bytes are taken from; None where only the structure is meant.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    source: Any = field(default=None, compare=False, repr=False)
    part: Part | None = None

    def data(self) -> memoryview:
        """The bytes (``data``)."""
        return data(self.source)

    def plain(self) -> Leaf:
        """Its structure alone, which keeps no data alive."""
        return replace(self, source=None)


def data(source: Any) -> memoryview:
    """The bytes of a leaf, in C order; without a copy where the source lies so in main memory."""
    if isinstance(source, torch.Tensor):
        plain = source.detach().resolve_conj().resolve_neg().cpu().contiguous()
        return plain.reshape(-1).view(torch.uint8).numpy().data
    if isinstance(source, bytes):
        return memoryview(source)
    if not source.nbytes:
        return memoryview(b"")
    return np.ascontiguousarray(source).reshape(-1).view(np.uint8).data


@dataclass(frozen=True)
class Encoded:
    """A tree taken apart: ``skeleton`` is JSON, ``leaves`` have the names it refers to."""

    skeleton: Any
    leaves: tuple[Leaf, ...]


def encode(tree: Any, name: str) -> Encoded:
    """Take a tree apart; ``name`` is the path of its root.

    Raises:
        StateError: a value of a type that is not allowed; names its path and its type.
    """
    encoder = _Encoder()
    skeleton = encoder.value(tree, name)
    return Encoded(skeleton, tuple(encoder.leaves))


def parts(tree: Any, name: str) -> tuple[Leaf, ...]:
    """The leaves that lie in parts, of a tree that may hold what cannot be saved."""
    encoder = _Lenient()
    encoder.value(tree, name)
    return tuple(leaf for leaf in encoder.leaves if leaf.part)


class _Encoder:
    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.tensors: dict[Any, str] = {}
        self.sharded: list[Sharded] = []  # kept alive: they are known by their ids

    def value(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind in TENSORS:
            return {"tensor": self.tensor(value, path)}
        if kind in _SCALARS:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if kind is dict or kind is OrderedDict:
            return self.mapping(value, path)
        if kind is list:
            return [self.value(item, f"{path}/#{n}") for n, item in enumerate(value)]
        if kind is tuple:
            return {"tuple": [self.value(item, f"{path}/#{n}") for n, item in enumerate(value)]}
        if kind is Sharded:
            return {"tensor": self.part(value, path)}
        if kind is np.ndarray and value.dtype.kind in NUMPY_KINDS and not value.dtype.fields:
            return {"array": self.numpy(value, path, "array")}
        if isinstance(value, np.generic) and value.dtype.kind in NUMPY_KINDS:
            return {"scalar": self.numpy(value, path, "scalar")}
        if kind is bytes:
            self.leaves.append(Leaf(path, "bytes", "bytes", (len(value),), len(value), value))
            return {"bytes": path}
        detail = f" of {value.dtype}" if isinstance(value, np.ndarray | np.generic) else ""
        raise StateError(
            f"a {kind.__module__}.{kind.__qualname__}{detail} cannot be saved",
            where=path,
            hint="use dict, list, tuple, str, int, float, bool, None, bytes, numpy or tensors",
        )

    def mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        pairs = []
        for key, item in value.items():  # training waits for this: the usual case is short
            if type(key) is str:
                pairs.append([key, self.value(item, f"{path}/{_text_component(key)}")])
            else:
                pairs.append([self.key(key, path), self.value(item, f"{path}/{component(key)}")])
        if type(value) is dict:
            return {"dict": pairs}
        # torch keeps the versions of modules here; their loading code asks for them
        metadata = getattr(value, "_metadata", None)
        extra = [] if metadata is None else [self.value(dict(metadata), f"{path}/#metadata")]
        return {"ordered": pairs, "metadata": extra}

    def key(self, key: Any, path: str) -> Any:
        parts = key if type(key) is tuple else (key,)
        if all(type(part) in (*_SCALARS, float) for part in parts):
            return self.value(key, path)
        raise StateError(
            f"a key of type {type(key).__module__}.{type(key).__qualname__} cannot be saved",
            where=path,
            hint="use str, int, or tuples of them",
        )

    def tensor(self, value: torch.Tensor, path: str) -> str:
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise StateError(
                f"a tensor of {value.dtype}, {value.layout}, on {value.device} cannot be saved",
                where=path,
                hint="use a dense tensor that has data: .to_dense(), .dequantize()",
            )
        shape, nbytes = tuple(value.shape), value.nbytes
        place = (value.device, value.data_ptr(), shape, value.stride())
        how = (value.dtype, value.is_conj(), value.is_neg())
        same = (place, how) if nbytes else id(value)
        if same not in self.tensors:
            self.tensors[same] = path
            dtype = _dtype_name(value.dtype)
            self.leaves.append(Leaf(path, "tensor", dtype, shape, nbytes, value))
        return self.tensors[same]

    def part(self, value: Sharded, path: str) -> str:
        same = id(value)
        if same not in self.tensors:
            self.tensors[same] = path
            self.sharded.append(value)
            local = value.local
            shape, dtype = tuple(local.shape), str(local.dtype).removeprefix("torch.")
            nbytes = local.numel() * local.element_size()
            part = Part(value.shape, value.start)
            self.leaves.append(Leaf(path, "tensor", dtype, shape, nbytes, local, part))
        return self.tensors[same]

    def numpy(self, value: Any, path: str, kind: str) -> str:
        self.leaves.append(Leaf(path, kind, value.dtype.str, value.shape, value.nbytes, value))
        return path


class _Lenient(_Encoder):
    """Passes over what cannot be saved."""

    def value(self, value: Any, path: str) -> Any:
        try:
            return super().value(value, path)
        except StateError:
            return None

    def key(self, key: Any, path: str) -> Any:
        try:
            return super().key(key, path)
        except StateError:
            return None


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def component(key: Any) -> str:
    """A key as one component of a path: no slash, not empty, different for different keys."""
    return _text_component(key) if type(key) is str else _quoted(key)


@functools.lru_cache(maxsize=1 << 14)
def _text_component(key: str) -> str:
    return key if _PLAIN.fullmatch(key) else _quoted(key)


def _quoted(key: Any) -> str:
    text = quote(str(key), safe=" !$&'()*+,:;<=>?@[]^`{|}~", errors="surrogatepass")
    return {"": "%", ".": "%2E"}.get(text, text) if isinstance(key, str) else f"#{text}"


def decode(skeleton: Any, leaf: Callable[[str], Any]) -> Any:
    """The tree of a skeleton; ``leaf`` gives the value of a leaf by its name."""
    if isinstance(skeleton, list):
        return [decode(item, leaf) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    kind, content = _first(skeleton)
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(decode(item, leaf) for item in content)
    if kind in ("dict", "ordered"):
        pairs = ((decode(key, leaf), decode(item, leaf)) for key, item in content)
        if kind == "dict":
            return dict(pairs)
        ordered = OrderedDict(pairs)
        for metadata in skeleton["metadata"]:
            ordered._metadata = OrderedDict(decode(metadata, leaf))  # type: ignore[attr-defined]
        return ordered
    return leaf(content)


def _first(skeleton: dict[str, Any]) -> tuple[str, Any]:
    if not skeleton:
        raise ValueError("an object without a key")
    return next(iter(skeleton.items()))


def from_bytes(kind: str, dtype: str, shape: tuple[int, ...], data: torch.Tensor) -> Any:
    """The value of a leaf whose bytes are in ``data``, a tensor of uint8, which it may keep.

    Raises:
        ValueError: a text has characters that do not exist; numpy would raise a SystemError.
    """
    if kind == "tensor":
        return data.view(getattr(torch, dtype)).reshape(shape)
    if kind == "bytes":
        return data.numpy().tobytes()
    # np.zeros would make "<U1" of "<U0"
    array = data.numpy().view(dtype).reshape(shape) if data.numel() else np.ndarray(shape, dtype)
    if array.dtype.kind == "U" and array.nbytes:
        points = np.frombuffer(data.numpy(), array.dtype.str[0] + "u4")
        if points.max() > sys.maxunicode:
            raise ValueError("a text has characters that do not exist")
    return array[()] if kind == "scalar" else array


def to_text(skeleton: Any) -> bytes:
    """A skeleton as JSON; the order of keys is part of the state and is kept."""
    return json.dumps(skeleton, separators=(",", ":"), allow_nan=False).encode()


def from_text(text: bytes) -> Any:
    """The inverse of ``to_text``; spaces around are ignored."""
    return json.loads(text)


def content(skeleton: Any, digest: Callable[[str], str]) -> bytes:
    """Return a tree's content, as bytes that do not depend on how it lies in files.

    Equal trees give equal bytes: dictionaries in any order, tied tensors or equal copies.
    ``digest`` gives a leaf's digest by its name.
    """
    return to_text(_content(skeleton, digest))


def _content(skeleton: Any, digest: Callable[[str], str]) -> Any:
    if isinstance(skeleton, list):
        return [_content(item, digest) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    kind, value = _first(skeleton)
    if kind == "float":
        return skeleton
    if kind == "tuple":
        return {"tuple": _content(value, digest)}
    if kind in ("dict", "ordered"):
        pairs = [
            [key if type(key) is str else _content(key, digest), _content(item, digest)]
            for key, item in value
        ]
        return {"dict": sorted(pairs, key=lambda pair: _key_text(pair[0]))}
    return {kind: digest(value)}


def _key_text(key: Any) -> bytes:
    return _name_text(key) if type(key) is str else to_text(key)


@functools.lru_cache(maxsize=1 << 14)
def _name_text(key: str) -> bytes:
    return f'"{key}"'.encode() if _PLAIN.fullmatch(key) else to_text(key)


def structure(leaves: tuple[Leaf, ...]) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
    """The structure that all ranks must agree on: names, types and shapes of the leaves."""
    for leaf in leaves:
        yield leaf.name, leaf.kind, leaf.dtype, leaf.part.shape if leaf.part else leaf.shape
