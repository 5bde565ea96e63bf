"""Tensors and reductions in MPI's words."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import ReduceOp

_MOVES = {1: "BYTE", 2: "INT16_T", 4: "INT32_T", 8: "INT64_T", 16: "C_DOUBLE_COMPLEX"}
_NUMBERS = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.int8: "INT8_T",
    torch.uint8: "UINT8_T",
    torch.int16: "INT16_T",
    torch.int32: "INT32_T",
    torch.int64: "INT64_T",
    torch.complex64: "C_FLOAT_COMPLEX",
    torch.complex128: "C_DOUBLE_COMPLEX",
}
# MPI has no numbers of these kinds: they are reduced as others that hold all their values
_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.bool: torch.uint8,
}
HALVES = (torch.float16, torch.bfloat16)
_OPERATIONS = {
    ReduceOp.SUM: "SUM",
    ReduceOp.AVG: "SUM",
    ReduceOp.PRODUCT: "PROD",
    ReduceOp.MIN: "MIN",
    ReduceOp.MAX: "MAX",
    ReduceOp.BAND: "BAND",
    ReduceOp.BOR: "BOR",
    ReduceOp.BXOR: "BXOR",
}
_FUNCTIONS: dict[Any, Callable[..., torch.Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
}


class BufferPart:
    """A tensor as MPI takes it: contiguous, of a type it knows, in memory it reaches.

    Args:
        number: the type to calculate in; None where bytes are only moved.
        spoil: the tensor's own memory may be used for what is in between.

    Attributes:
        buffer: that memory; the tensor's own where it will do.
    """

    def __init__(
        self, tensor: torch.Tensor, number: torch.dtype | None = None, *, spoil: bool = True
    ) -> None:
        self._tensor = tensor.detach()
        kind = number or tensor.dtype
        direct = tensor.is_contiguous() and tensor.dtype == kind and spoil
        if tensor.is_cuda and not _takes_cuda():
            self.buffer = torch.empty(tensor.shape, dtype=kind, pin_memory=True)
        elif direct:
            self.buffer = self._tensor
        else:
            self.buffer = torch.empty(tensor.shape, dtype=kind, device=tensor.device)

    def into(self) -> torch.Tensor:
        """Fill the buffer, if it is not the tensor itself."""
        if self.buffer is not self._tensor:
            self.buffer.copy_(self._tensor)
        return self.buffer

    def back(self, after: Callable[[torch.Tensor], None] | None = None) -> None:
        """Give the buffer's contents to the tensor."""
        if after is not None:
            after(self.buffer)
        if self.buffer is not self._tensor:
            self._tensor.copy_(self.buffer)

    def number(self) -> list[Any]:
        """For reductions: numbers."""
        return [_memory(self.buffer), _mpi(_NUMBERS[self.buffer.dtype])]

    def bytes(self, counts: list[int] | None = None) -> list[Any]:
        """For moves: things of the same size, so many of them for each rank."""
        kind = _mpi(_MOVES[self.buffer.element_size()])
        memory = _memory(self.buffer)
        return [memory, kind] if counts is None else [memory, counts, kind]


class Reduction:
    """torch's operation in MPI's words.

    Attributes:
        operation: MPI's.
        function: torch's, of two tensors with ``out``; None where there is none.
    """

    def __init__(self, operation: Any, world: int) -> None:
        self._kind = operation.op if hasattr(operation, "op") else operation
        if self._kind not in _OPERATIONS:
            raise ValueError(f"MPI has no reduction {self._kind}")
        self._world = world
        self.operation = _mpi(_OPERATIONS[self._kind])
        self.function = _FUNCTIONS.get(self._kind)

    def type_of(self, tensor: torch.Tensor) -> torch.dtype:
        """The type to calculate in.

        Raises:
            ValueError: MPI cannot calculate with such numbers.
        """
        kind = _WIDER.get(tensor.dtype, tensor.dtype)
        if kind not in _NUMBERS:
            raise ValueError(f"MPI cannot reduce tensors of {tensor.dtype}")
        return kind

    def after(self, buffer: torch.Tensor) -> None:
        if self._kind == ReduceOp.AVG:
            buffer.div_(self._world)


def bytes_of(tensor: torch.Tensor) -> list[Any]:
    """The memory of a contiguous tensor in host memory as MPI takes it."""
    return [_plain(tensor).numpy(), _mpi("BYTE")]


def in_host_memory(tensor: torch.Tensor) -> bool:
    """Whether a ``BufferPart`` has the tensor where the processor reaches it."""
    return not (tensor.is_cuda and _takes_cuda())


def _memory(tensor: torch.Tensor) -> Any:
    """The tensor's memory, without a copy.

    mpi4py takes a device's tensor itself, as bytes: it knows few kinds of numbers, and is told
    which one it is.
    """
    return _plain(tensor) if tensor.is_cuda else _plain(tensor).numpy()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes as numbers of a kind that numpy has."""
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)


def in_place() -> Any:
    """MPI's mark for a buffer that is both sent and received."""
    from mpi4py import MPI

    return MPI.IN_PLACE


def _mpi(name: str) -> Any:
    from mpi4py import MPI

    return getattr(MPI, name)


def counts(tensor: torch.Tensor, sizes: list[int] | None, world: int) -> list[int]:
    """Elements for each rank, of sizes along the first dimension."""
    if not sizes:
        return [tensor.numel() // world] * world
    row = tensor.numel() // tensor.shape[0] if tensor.shape[0] else 0
    return [size * row for size in sizes]


def _takes_cuda() -> bool:
    """Whether the library reads and writes device memory itself."""
    said = os.environ.get("HPCDET_MPI_CUDA")
    if said is not None:
        return said == "1"
    try:
        return bool(ctypes.CDLL(None).MPIX_Query_cuda_support())
    except (AttributeError, OSError):
        return False
