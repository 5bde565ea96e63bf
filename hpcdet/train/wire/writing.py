"""Values as messages."""

from __future__ import annotations

import struct
import textwrap
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hpcdet.checkpoint.state.tree import NUMPY_KINDS, TENSORS, data
from hpcdet.errors import UsageError
from hpcdet.train.wire.kinds import (
    DEEPEST,
    FLOAT,
    INT,
    LENGTH,
    MOST_BYTES,
    TORCH_NAMES,
    is_key,
    named,
)

_SHOWN = 8


class Unsendable(UsageError, TypeError):
    """The value holds something that ranks do not send each other."""


class _Refused(Exception):
    """``what``: the value that is refused; ``path``: where it stands, its end first."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []


def encode(value: Any) -> bytearray:
    """The message of a value.

    Raises:
        Unsendable: it holds something of a type that is not allowed; names the type, and where it
            stands: ``value['losses'][3]``.
        UsageError: it takes more than ``MOST_BYTES``.
    """
    out: list[Any] = []
    try:
        _write(out, value, DEEPEST)
    except _Refused as refused:
        steps = refused.path[::-1]
        place = "".join(["value", *steps[:_SHOWN], "…" if len(steps) > _SHOWN else ""])
        raise Unsendable(
            f"{place} is {refused.what}: ranks do not send each other such values",
            hint="send None, bool, int, float, str, bytes, list, tuple, dict, numpy arrays or "
            "tensors; of anything else, what of it is of these types",
        ) from None
    size = sum(map(len, out))
    if size > MOST_BYTES:
        raise UsageError(
            f"the value takes {size} bytes: ranks send each other {MOST_BYTES} at most",
            hint="send it in parts, or save it as a file",
        )
    return bytearray().join(out)


def _write(out: list[Any], value: Any, depth: int) -> None:
    write = _WRITERS.get(type(value))
    if write is not None:
        write(out, value, depth)
    elif isinstance(value, np.generic):
        _write_numpy(out, value, depth)
    else:
        raise _Refused(named(value))


def _write_constant(out: list[Any], value: bool | None, _: int) -> None:
    out.append(b"N" if value is None else b"T" if value else b"F")


def _write_int(out: list[Any], value: int, _: int) -> None:
    if -(1 << 63) <= value < 1 << 63:
        out.append(b"i" + INT.pack(value))
    else:
        _write_bytes(out, b"I", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _write_float(out: list[Any], value: float, _: int) -> None:
    out.append(b"d" + FLOAT.pack(value))


def _write_str(out: list[Any], value: str, _: int) -> None:
    _write_bytes(out, b"s", value.encode("utf-8", "surrogatepass"))


def _write_bytes(out: list[Any], letter: bytes, value: bytes) -> None:
    out.append(letter + LENGTH.pack(len(value)))
    out.append(value)


def _write_list(out: list[Any], value: list[Any], depth: int) -> None:
    kinds = set(map(type, value))
    run = _RUNS.get(kinds.pop()) if len(kinds) == 1 else None
    if run is not None:
        letter, code = run
        try:
            packed = struct.pack(f"<{len(value)}{code}", *value)
        except struct.error:  # integers of more than 8 bytes
            pass
        else:
            out.append(letter + LENGTH.pack(len(value)))
            out.append(packed)
            return
    if run is None and _is_table(value):
        _write_table(out, value, depth)
    else:
        _write_items(out, b"l", value, depth)


def _is_table(value: list[Any]) -> bool:
    """Whether a list holds nothing but tuples of one length."""
    return set(map(type, value)) == {tuple} and len(set(map(len, value))) == 1 and bool(value[0])


def _write_table(out: list[Any], value: list[Any], depth: int) -> None:
    """Write a list of tuples of one length by columns."""
    out.append(b"z" + LENGTH.pack(len(value[0])))
    for at in range(len(value[0])):  # zip would make an iterator of each row
        try:
            _write_list(out, [row[at] for row in value], depth - 1)
        except _Refused as refused:  # its path ends with the row, where that is known
            refused.path.insert(max(0, len(refused.path) - 1), f"[{at}]")
            raise


def _write_items(out: list[Any], letter: bytes, value: Sequence[Any], depth: int) -> None:
    _refuse_depth(depth)
    out.append(letter + LENGTH.pack(len(value)))
    at = 0
    try:
        for at, item in enumerate(value):  # noqa: B007 (says where it was refused)
            _write(out, item, depth - 1)
    except _Refused as refused:
        refused.path.append(f"[{at}]")
        raise


def _write_dict(out: list[Any], value: Mapping[Any, Any], depth: int) -> None:
    out.append(b"m")
    _write_pairs(out, value, depth)


def _write_ordered(out: list[Any], value: OrderedDict[Any, Any], depth: int) -> None:
    out.append(b"o")
    # torch keeps the versions of modules here; their loading code asks for them
    metadata = getattr(value, "_metadata", None)
    try:
        _write(out, None if metadata is None else dict(metadata), depth - 1)
    except _Refused as refused:
        refused.path.append("._metadata")
        raise
    _write_pairs(out, value, depth)


def _write_pairs(out: list[Any], value: Mapping[Any, Any], depth: int) -> None:
    _refuse_depth(depth)
    out.append(LENGTH.pack(len(value)))
    key = None
    try:
        for key, item in value.items():
            if not is_key(key):
                break
            _write(out, key, depth - 1)
            _write(out, item, depth - 1)
        else:
            return
    except _Refused as refused:
        refused.path.append(f"[{textwrap.shorten(repr(key), 40)}]")
        raise
    raise _Refused(f"{named(value)} with {named(key)} as a key")


def _refuse_depth(depth: int) -> None:
    if depth <= 0:
        raise _Refused(f"nested more than {DEEPEST} deep, or contains itself")


def _write_tensor(out: list[Any], value: torch.Tensor, _: int) -> None:
    if value.layout != torch.strided or value.is_quantized or value.is_meta or value.is_nested:
        nested = "nested " * value.is_nested
        raise _Refused(f"a {nested}tensor of {value.dtype}, {value.layout}, on {value.device}")
    _write_data(out, b"x", TORCH_NAMES[value.dtype], value.shape, data(value))


def _write_numpy(out: list[Any], value: np.ndarray[Any, Any] | np.generic, _: int) -> None:
    if value.dtype.kind not in NUMPY_KINDS or value.dtype.fields:
        raise _Refused(named(value))
    letter = b"a" if type(value) is np.ndarray else b"c"
    _write_data(out, letter, value.dtype.str, value.shape, data(value))


def _write_data(
    out: list[Any], letter: bytes, dtype: str, shape: Sequence[int], content: memoryview
) -> None:
    _write_bytes(out, letter, dtype.encode())
    out.append(bytes([len(shape)]) + struct.pack(f"<{len(shape)}Q", *shape))
    out.append(content)


_RUNS = {float: (b"f", "d"), int: (b"q", "q")}
"""Lists of numbers alone: what reducers have most of, and by the million."""

_WRITERS: dict[type, Callable[[list[Any], Any, int], None]] = {
    type(None): _write_constant,
    bool: _write_constant,
    int: _write_int,
    float: _write_float,
    str: _write_str,
    bytes: lambda out, value, _: _write_bytes(out, b"b", value),
    list: _write_list,
    tuple: lambda out, value, depth: _write_items(out, b"t", value, depth),
    dict: _write_dict,
    OrderedDict: _write_ordered,
    np.ndarray: _write_numpy,
    **dict.fromkeys(TENSORS, _write_tensor),
}
