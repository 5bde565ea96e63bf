"""The safetensors format: eight bytes of length, a header in JSON, then the tensors' bytes.

Written here because it is less than a dependency; files are equal to those of its own library.
"""

from __future__ import annotations

import json
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcdet.errors import IntegrityError
from hpcdet.store.fs import files

_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}
_OTHERS = (struct.error, RuntimeError, OverflowError)
"""What the header of no such file may raise; RecursionError is a RuntimeError."""
_HEADER_LIMIT = 100_000_000
_ALIGNMENT = 8


def knows(dtype: torch.dtype) -> bool:
    """Whether the format has a name for a type."""
    return dtype in _NAMES


def write(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file, which has its name only once it is whole and durable.

    Args:
        tensors: in main memory, of types that ``knows`` knows.

    Raises:
        OSError: the disk is full or fails; nothing is left behind.
    """
    # wide types first, so that each begins where its type wants it to
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name in order:
        one = tensors[name]
        header[name] = {
            "dtype": _NAMES[one.dtype],
            "shape": list(one.shape),
            "data_offsets": [position, position + one.nbytes],
        }
        position += one.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)

    def pieces() -> Iterator[bytes]:
        yield struct.pack("<Q", len(text))
        yield text
        for name in order:
            flat = tensors[name].contiguous().reshape(-1)
            if flat.numel():
                yield flat.view(torch.uint8).numpy().data  # type: ignore[misc]

    files.replace(path, pieces())


def read(path: Path) -> tuple[OrderedDict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a file, by name, and its metadata.

    Raises:
        IntegrityError: it is not such a file, or not all of it.
    """
    try:
        return _read(path)
    except (ValueError, LookupError, TypeError, AttributeError, *_OTHERS) as error:
        raise IntegrityError(
            f"it is no safetensors file, or damaged ({error})",
            where=str(path),
            hint="copy it again from its source",
        ) from None


def _read(path: Path) -> tuple[OrderedDict[str, torch.Tensor], dict[str, str]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        [length] = struct.unpack("<Q", file.read(8))
        if length > min(size - 8, _HEADER_LIMIT):
            raise ValueError("its header is too long")
        header = json.loads(file.read(length))
    metadata = header.pop("__metadata__", {})
    data = np.fromfile(path, np.uint8, offset=8 + length)
    tensors: OrderedDict[str, torch.Tensor] = OrderedDict()
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape = _TYPES[entry["dtype"]], entry["shape"]
        start, beyond = entry["data_offsets"]
        if start != end or not start <= beyond <= data.size:
            raise ValueError("its tensors are not where they should be")
        end = beyond
        raw = torch.from_numpy(data[start:beyond].copy())
        value = raw.view(dtype) if raw.numel() else torch.empty(0, dtype=dtype)
        tensors[name] = value.reshape(shape)
    if end != data.size:
        raise ValueError("it has bytes that belong to no tensor")
    return tensors, {str(key): str(value) for key, value in metadata.items()}
