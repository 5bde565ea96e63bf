"""The saves of ``make bench-checkpoint``: each begins one in a folder and says when it is done."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_loads as loading
import h5py
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from hpcdet import checkpoint

State = dict[str, torch.Tensor]
Done = Callable[[], bool]
"""Whether what was begun is on the disk."""
PIECE = 32 << 20
PAGE = 4096
FLOOR, MEMCPY = "raw O_DIRECT write", "memcpy"
STAGED, SYNC = "hpcdet beside training", "hpcdet"
DCP_PROCESS, DCP_THREAD = "DCP async, process", "DCP async, thread"


class Methods:
    """All ways to save, of one rank among several. Every rank calls the same one."""

    def __init__(self, tensors: State, rank: int, world: int) -> None:
        self.tensors, self.rank, self.world = tensors, rank, world
        share = -(-sum(one.nbytes for one in tensors.values()) // world // PAGE) * PAGE
        self.bytes = mmap.mmap(-1, share)
        for at in range(0, share, 8):
            self.bytes[at : at + 8] = at.to_bytes(8, "little") if at % PAGE == 0 else b"notzeros"
        self.images = {STAGED: checkpoint.Image(), SYNC: checkpoint.Image()}
        self.copies = [torch.zeros_like(one) for one in self.share()]
        self.stager: DefaultStager | None = None
        self.saves = {
            FLOOR: self.raw,
            SYNC: self.hpcdet,
            STAGED: self.beside,
            "torch.save": lambda folder: self.first(folder, _torch),
            "safetensors": lambda folder: self.first(folder, _safetensors),
            "h5py": lambda folder: self.first(folder, _h5py),
            "DCP": self.dcp,
            DCP_THREAD: self.dcp_thread,
            DCP_PROCESS: self.dcp_process,
            MEMCPY: self.memcpy,
        }

    def share(self) -> list[torch.Tensor]:
        """The tensors that this rank writes: as many bytes as any other."""
        shares: list[tuple[int, list[torch.Tensor]]] = [(0, []) for _ in range(self.world)]
        for one in sorted(self.tensors.values(), key=lambda tensor: -tensor.numel()):
            least = min(range(self.world), key=lambda rank: shares[rank][0])
            shares[least] = (shares[least][0] + one.nbytes, [*shares[least][1], one])
        return shares[self.rank][1]

    def raw(self, folder: Path) -> Done:
        fd = os.open(folder / f"raw-{self.rank}", os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
        view = memoryview(self.bytes)
        for start in range(0, len(view), PIECE):
            os.pwrite(fd, view[start : start + PIECE], start)
        os.fsync(fd)
        os.close(fd)
        return _now

    def memcpy(self, folder: Path) -> Done:
        torch._foreach_copy_(self.copies, self.share())
        return _now

    def hpcdet(self, folder: Path) -> Done:
        checkpoint.save(
            folder / "00000001.g1",
            self.tensors,
            rank=self.rank,
            world=self.world,
            exchange=loading.exchange,
            image=self.images[SYNC],
        )
        return _now

    def beside(self, folder: Path) -> Done:
        return checkpoint.begin(
            folder / "00000001.g1",
            self.tensors,
            rank=self.rank,
            world=self.world,
            image=self.images[STAGED],
        ).done

    def first(self, folder: Path, save: Callable[[State, Path], None]) -> Done:
        if self.rank == 0:
            save(self.tensors, folder / "state")
            _sync(folder / "state")
        dist.barrier()
        return _now

    def dcp(self, folder: Path) -> Done:
        dcp.save({"s": self.tensors}, storage_writer=FileSystemWriter(folder, sync_files=True))
        return _now

    def dcp_thread(self, folder: Path) -> Done:
        writer = FileSystemWriter(folder, sync_files=True)
        future: Any = dcp.async_save({"s": self.tensors}, storage_writer=writer)
        return lambda: bool(future.done())

    def dcp_process(self, folder: Path) -> Done:
        if self.stager is None:
            self.stager = DefaultStager(StagingOptions(False, True, False, False))
        response: Any = dcp.async_save(
            {"s": self.tensors},
            storage_writer=FileSystemWriter(folder, sync_files=True),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=self.stager,
        )
        future = getattr(response, "upload_completion", response)
        return lambda: bool(future.done())


def _now() -> bool:
    return True


def _torch(tensors: State, path: Path) -> None:
    torch.save(tensors, path)


def _safetensors(tensors: State, path: Path) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path)


def _h5py(tensors: State, path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, tensor in tensors.items():
            file.create_dataset(name, data=tensor.numpy())


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


FILES = {"torch.save": _torch, "safetensors": _safetensors, "h5py": _h5py}
"""Peers that write a state to one file, by name."""
