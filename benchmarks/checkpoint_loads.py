"""The loads of ``make bench-checkpoint``: cold, each by all ranks at once, each of all it needs.

Cold: nothing of the files is in the page cache. Everybody reads into tensors that are there, as a
resumed trial has its weights, or into new ones; new memory has a floor of its own, for the kernel
takes longer to find it than a fast disk to fill it. Only hpcdet checks what it has read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import h5py
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from hpcdet import checkpoint
from hpcdet.checkpoint.io import shared_ring

State = dict[str, torch.Tensor]
PIECE = 32 << 20
HUGE = 2 << 20

RAW, RAW_NEW = "raw O_DIRECT read", "raw O_DIRECT read, new memory"
INTO, NEW, VERIFY = "hpcdet into tensors", "hpcdet, new tensors", "hpcdet verify"
PEERS = ("torch.load", "torch.load mmap", "safetensors", "h5py")
DCP = "DCP"


class Loads:
    """All ways to load, of one rank among several, and the files for it. All ranks call together.

    Args:
        saves: ways to save, by which the files are made; each is waited for.
    """

    def __init__(
        self,
        tensors: State,
        rank: int,
        world: int,
        folder: Path,
        saves: dict[str, Callable[[State, Path], None]],
    ) -> None:
        self.rank, self.world, self.folder = rank, world, folder
        self.own = {name: torch.zeros_like(one) for name, one in tensors.items()}
        size = sum(one.nbytes for one in tensors.values())
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.memory = self._fresh()
        self.memory.madvise(23)  # MADV_POPULATE_WRITE
        if rank == 0:
            for name in ("raw", "dcp", *saves):
                (folder / name).mkdir(parents=True)
            with (folder / "raw" / "state").open("wb") as file:
                for one in tensors.values():
                    file.write(one.numpy().tobytes())
                file.truncate(self.size)
            for name, save in saves.items():
                save(tensors, folder / name / "state")
        dist.barrier()
        dcp.save({"s": tensors}, storage_writer=FileSystemWriter(folder / "dcp", sync_files=True))
        checkpoint.save(
            folder / "hpcdet" / "00000001.g1", tensors, rank=rank, world=world, exchange=exchange
        )
        files = {"torch.load": "torch.save", "torch.load mmap": "torch.save"}
        self.loads: dict[str, tuple[str, Callable[[Path], object]]] = {
            RAW: ("raw", lambda at: self._raw(at, self.memory)),
            RAW_NEW: ("raw", lambda at: self._raw(at, self._fresh())),
            INTO: ("hpcdet", lambda at: self._ours(at, self.own)),
            NEW: ("hpcdet", lambda at: self._ours(at, None)),
            VERIFY: ("hpcdet", lambda at: checkpoint.verify(at / "00000001.g1")),
            DCP: ("dcp", lambda at: dcp.load({"s": self.own}, checkpoint_id=at)),
        }
        for peer, load in zip(PEERS, (_torch, _mmap, _safetensors, _h5py), strict=True):
            file = files.get(peer, peer)
            self.loads[peer] = (file, lambda at, load=load: self._copy(load(at / "state")))
            self.loads[f"{peer}, new"] = (file, lambda at, load=load: load(at / "state"))

    def cold(self, name: str) -> Callable[[], object]:
        """Take what a way to load reads out of the page cache; the load."""
        at, load = self.folder / self.loads[name][0], self.loads[name][1]
        if self.rank == 0:
            os.sync()
            for path in at.rglob("*"):
                if path.is_file():
                    fd = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(fd)
        self._warm()
        dist.barrier()
        return lambda: load(at)

    def _warm(self) -> None:
        """Free as much memory as any load takes.

        A virtual machine gives back to its host what is free for long; then the first who takes it
        pays for that, be it for pages of files.
        """
        memory = mmap.mmap(-1, 2 * self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(23)
        memory.close()

    def _fresh(self) -> mmap.mmap:
        memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def _raw(self, at: Path, memory: mmap.mmap) -> mmap.mmap:
        fd = os.open(at / "state", os.O_RDONLY | os.O_DIRECT)
        view = memoryview(memory)
        for start in range(0, self.size, PIECE):
            os.preadv(fd, [view[start : start + PIECE]], start)
        os.close(fd)
        return memory

    def _ours(self, at: Path, into: State | None) -> object:
        step = at / "00000001.g1"
        with shared_ring.share(self.rank, 0, exchange) as readers:
            return checkpoint.load(step, self.rank, self.world, into=into, readers=readers)

    def _copy(self, loaded: State) -> None:
        names = list(self.own)
        torch._foreach_copy_([self.own[name] for name in names], [loaded[name] for name in names])


def exchange(value: object) -> list[object]:
    """The exchange of all ranks, by torch."""
    box: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


def _torch(path: Path) -> State:
    found: State = torch.load(path, weights_only=True)
    return found


def _mmap(path: Path) -> State:
    return _looked_at(torch.load(path, weights_only=True, mmap=True))


def _safetensors(path: Path) -> State:
    from safetensors.torch import load_file

    return _looked_at(load_file(path))


def _looked_at(found: State) -> State:
    """A file that is mapped is not read before somebody looks."""
    for one in found.values():
        one.view(-1)[:: mmap.PAGESIZE // one.element_size()].sum()
    return found


def _h5py(path: Path) -> State:
    with h5py.File(path, "r") as file:
        return {
            f"{kind}/{name}": torch.from_numpy(values[()])
            if values.shape
            else torch.tensor(values[()])
            for kind, group in file.items()
            for name, values in group.items()
        }
