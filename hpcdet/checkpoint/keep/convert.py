"""Checkpoints as files that other programs read, and such files as checkpoints to begin from.

Nothing that is read here may run code: of PyTorch's files only plain tensors and containers are
taken (``weights_only``), everything else is refused.
"""

from __future__ import annotations

import json
import math
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from blake3 import blake3

from hpcdet.checkpoint.format import safetensors
from hpcdet.checkpoint.format.table import item_size
from hpcdet.checkpoint.read import load
from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.state.tree import Leaf, StateError
from hpcdet.checkpoint.write.save import Saved, save
from hpcdet.errors import IntegrityError, NotFound, UsageError
from hpcdet.store.fs import files

FORMATS = ("safetensors", "pt", "hdf5")
_WEIGHTS = ("model", "models", "module", "state_dict", "model_state_dict", "weights")
"""What people call the weights in a state of their own; tried in this order."""
_WHOLE = "hpcdet"
"""Metadata of a whole state in a file of tensors: its skeleton, and what each tensor stands for."""
_PIECE = 4 << 20
_MOST_EMPTY = 1 << 20
"""Values of an array whose type has no bytes."""


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        tensors: how many are in it.
        digest: of the state of the checkpoint that it was made from.
    """

    path: Path
    bytes: int
    tensors: int
    digest: str


def export(folder: Path, target: Path, form: str, whole: bool = False) -> Exported:
    """Write the weights in a checkpoint, or all of its shared state, into one file.

    Args:
        form: of ``FORMATS``.
        whole: also optimizers, schedulers and so on; the ranks' private parts (random number
            generators) mean nothing elsewhere and are left out.

    Raises:
        IntegrityError: the checkpoint is damaged.
        NotFound: no tensors are in it.
        StateError: a type that the format has no name for.
        OSError: the file cannot be written; nothing is left behind.
    """
    loaded = load.load(folder)
    about = {"format": "pt", "made_from": folder.name, "state_digest": loaded.manifest.digest}
    count = 0
    if whole and form == "pt":
        plain = _plain(loaded.shared)
        count = sum(1 for _ in _tensors(plain, ""))
        _write_pt(target, {"shared": plain, "meta": _plain(dict(loaded.manifest.meta))})
    elif whole:
        encoded = tree.encode(loaded.shared, "shared")
        leaves = {leaf.name: [leaf.kind, leaf.dtype, list(leaf.shape)] for leaf in encoded.leaves}
        about[_WHOLE] = json.dumps({"skeleton": encoded.skeleton, "leaves": leaves})
        tensors = {leaf.name: _as_tensor(leaf) for leaf in encoded.leaves}
        count = len(tensors)
        _write_tensors(target, form, tensors, about)
    else:
        found = weights(loaded.shared)
        count = len(found)
        if not found:
            raise NotFound(
                "no weights are in it", where=str(folder), hint="--all exports the whole state"
            )
        _write_tensors(target, form, found, about)
    return Exported(target, target.stat().st_size, count, loaded.manifest.digest)


def take_in(source: Path, folder: Path) -> Saved:
    """Make a checkpoint of a file of weights, or of a whole state that ``export`` wrote.

    Flat weights become the state of a ``PyTorchTrial`` of one model; any other tree of plain
    values and tensors that of the Core API.

    Args:
        folder: the checkpoint to be made.

    Raises:
        UsageError: the file holds pickled code, or is of no known format; or ``folder`` exists.
        IntegrityError: it is damaged.
        CheckpointFailed: the checkpoint cannot be written.
    """
    if folder.exists():
        raise UsageError("it exists", where=str(folder), hint="give another folder")
    shared = _read_safetensors(source) if _is_safetensors(source) else _read_pt(source)
    meta = {"kind": "import", "source": source.name, "source_digest": _digest(source)}
    return save(folder, shared, meta=meta)


def take_in_folder(source: Path, folder: Path) -> Saved:
    """Make a checkpoint of a folder of files, such as Determined's are.

    It is one of the Core API's, whose ``restore_path`` gives the files back. Links and special
    files are left out.

    Args:
        folder: the checkpoint to be made.

    Raises:
        CheckpointFailed: the checkpoint cannot be written.
        OSError: a file cannot be read.
    """
    packed = {
        str(path.relative_to(source)): np.memmap(path, np.uint8, mode="r").view(np.ndarray)
        if path.stat().st_size
        else b""
        for path in sorted(source.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    meta = {"kind": "kept", "kept": ["imported"], "source": source.name}
    return save(folder, {"state": {"files": packed}}, meta=meta)


def weights(shared: Any) -> dict[str, torch.Tensor]:
    """The weights in a shared state, by fully qualified name.

    Those of a ``PyTorchTrial`` of one model have the names of its ``state_dict``; of several, the
    model's number in front. In a state of the Core API they are what is called ``model`` (or the
    like) there, else all tensors in it.
    """
    if isinstance(shared, Mapping) and "models" in shared:
        models = shared["models"]
        return dict(_tensors(models[0] if len(models) == 1 else models, ""))
    state = shared.get("state", shared) if isinstance(shared, Mapping) else shared
    if isinstance(state, Mapping):
        for name in _WEIGHTS:
            if found := dict(_tensors(state.get(name), "")):
                return found
    return dict(_tensors(state, ""))


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors in a tree, and arrays that can be some, by their paths with dots."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, np.ndarray):
        if (made := _of_array(value)) is not None:
            yield name, made
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{name}.{number}" if name else str(number))


def _of_array(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    try:
        return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))))
    except TypeError:  # text, times
        return None


def _plain(value: Any) -> Any:
    """A tree as PyTorch reads it without running anything: arrays become tensors, or lists."""
    if isinstance(value, np.ndarray):
        made = _of_array(value)
        return made if made is not None else _plain(value.tolist())
    if isinstance(value, np.generic):
        return value.item() if isinstance(value.item(), bool | int | float | str) else str(value)
    if isinstance(value, OrderedDict):
        return OrderedDict((key, _plain(item)) for key, item in value.items())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, bytes):
        return torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else ""
    return value


def _as_tensor(leaf: Leaf) -> torch.Tensor:
    """A leaf as a tensor: itself, if the formats know its type, else its bytes."""
    if isinstance(leaf.source, torch.Tensor) and safetensors.knows(leaf.source.dtype):
        return leaf.source.detach().contiguous()
    data = bytearray(leaf.data())
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


# -- writing -----------------------------------------------------------------------------------


def _write_tensors(
    target: Path, form: str, tensors: Mapping[str, torch.Tensor], about: Mapping[str, str]
) -> None:
    if form == "pt":
        _write_pt(target, OrderedDict(tensors))
        return
    for name, one in tensors.items():
        if not safetensors.knows(one.dtype):
            hint = "use --format pt, which has all types"
            raise StateError(f"{form} has no {one.dtype}", where=name, hint=hint)
    if form == "safetensors":
        safetensors.write(target, tensors, about)
    else:
        _write_hdf5(target, tensors, about)


def _write_pt(target: Path, value: Any) -> None:
    with _Beside(target) as temporary, temporary.open("wb") as file:
        try:
            torch.save(value, file)
        except RuntimeError as error:
            # behind a write that failed, the writer of the archive fails once more at its end
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def _write_hdf5(
    target: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, str]
) -> None:
    with _Beside(target) as temporary, h5py.File(temporary, "w", libver=("v110", "v110")) as file:
        for key, text in about.items():  # an attribute holds 64 KB, a skeleton may be longer
            if len(text) < 1 << 12:
                file.attrs[key] = text
            else:
                file[f"{key}-metadata"] = text
        for name, one in tensors.items():
            whole = one.detach().contiguous()
            if whole.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
                width = torch.uint16 if whole.element_size() == 2 else torch.uint8
                file[name] = whole.view(width).numpy()
                file[name].attrs["dtype"] = str(one.dtype).removeprefix("torch.")
            else:
                file[name] = whole.numpy()


class _Beside:
    """A file beside another, which takes its place, durably, if all goes well."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")

    def __enter__(self) -> Path:
        files.make_folder(self._target.parent)
        return self._temporary

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._temporary.unlink(missing_ok=True)
            return
        with self._temporary.open("rb") as file:
            os.fsync(file.fileno())
        self._temporary.replace(self._target)
        files.sync_folder(self._target.parent)


# -- reading -----------------------------------------------------------------------------------


def _is_safetensors(source: Path) -> bool:
    """It begins with a length and the brace of its header; PyTorch's begin otherwise."""
    with source.open("rb") as file:
        return file.read(9)[8:9] == b"{"


def _read_safetensors(source: Path) -> Any:
    tensors, about = safetensors.read(source)
    if _WHOLE not in about:
        return {"models": [tensors]}
    try:
        whole = json.loads(about[_WHOLE])
        return tree.decode(whole["skeleton"], _Whole(tensors, whole["leaves"]))
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise IntegrityError(f"its state is damaged ({error})", where=str(source)) from None


class _Whole:
    """Gives the values of leaves, each made once."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], leaves: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._leaves = leaves
        self._made: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        if name not in self._made:
            kind, dtype, shape = self._leaves[name]
            flat = self._tensors[name].contiguous().reshape(-1).view(torch.uint8)
            count = math.prod(shape)
            if count * item_size(kind, dtype) != flat.numel() or count > _MOST_EMPTY + flat.numel():
                raise ValueError(f"{name} of shape {shape} has not {flat.numel()} bytes")
            self._made[name] = tree.from_bytes(kind, dtype, tuple(shape), flat)
        return self._made[name]


def _read_pt(source: Path) -> Any:
    try:
        value = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UsageError(
            "it is no safetensors file, and PyTorch cannot read it without running code that may "
            f"be in it ({_first_line(error)})",
            where=str(source),
            hint="where it was made: torch.save(model.state_dict(), FILE)",
        ) from None
    if isinstance(value, Mapping) and "shared" in value and set(value) <= {"shared", "meta"}:
        return value["shared"]
    if isinstance(value, Mapping) and value and all(map(torch.is_tensor, value.values())):
        return {"models": [OrderedDict(value)]}
    return {"state": value}


def _first_line(error: Exception) -> str:
    """Its first sentence: what torch adds recommends to run the code."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return line.split(". ", 1)[0][:200]


def _digest(source: Path) -> str:
    hasher = blake3()
    with source.open("rb") as file:
        while data := file.read(_PIECE):
            hasher.update(data)
    return str(hasher.hexdigest())
