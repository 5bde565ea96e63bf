"""MPI as a backend of ``torch.distributed``, through mpi4py.

DDP, its communication hooks and everything else that speaks to a process group run over any MPI
library, unchanged.

Collectives are non-blocking, so that gradients travel while the backward pass goes on. On a device,
tensors are handed to the library as they are where it says that it can (``HPCDET_MPI_CUDA=1``, or
Open MPI built so); elsewhere they go through host memory.
"""

from __future__ import annotations

import atexit
from typing import Any

import torch.distributed as dist

from hpcdet.errors import ConfigError
from hpcdet.process.launcher_watch import say_goodbye
from hpcdet.process.ranks import Ranks
from hpcdet.store.config import mpi_torch
from hpcdet.train.mpi.direct import Direct
from hpcdet.train.mpi.group import NAME, MPIProcessGroup
from hpcdet.train.mpi.progress_thread import ProgressThread

__all__ = ["NAME", "leave", "prepare"]


def _missing() -> str:
    """Why MPI cannot be used here; "" if it can."""
    try:
        import mpi4py

        mpi4py.rc.finalize = False  # it would wait for the others, too, when this rank has failed
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        return str(error)
    return ""


def prepare(ranks: Ranks) -> None:
    """Start MPI, see that it and the launcher mean the same ranks, and make the backend known.

    Raises:
        ConfigError: torch is too old, there is no MPI, it counts the processes in another way
            than the launcher, or it may not be called from a thread.
    """
    where = "distributed.backend: mpi"
    if why := mpi_torch.objection():
        raise ConfigError(why, where=where, hint=mpi_torch.repair())
    if why := _missing():
        raise ConfigError(
            f"MPI cannot be loaded: {why}",
            where=where,
            hint="load the site's MPI module (site file, `setup`) and install hpcdet[mpi]",
        )
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if (comm.rank, comm.size) != (ranks.rank, ranks.world):
        raise ConfigError(
            f"MPI gives rank {comm.rank} of {comm.size}, the launcher rank {ranks.rank} of "
            f"{ranks.world}",
            where=where,
            hint="use a launcher that this MPI understands: launcher.kind mpirun in the site file, "
            "or launcher.args by which the scheduler's own does, as --mpi=pmix",
        )
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ConfigError(
            "this MPI may be called from its main thread only",
            where=where,
            hint="ask for more: MPICH_MAX_THREAD_SAFETY=multiple, or another build of the library",
        )
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def leave() -> None:
    """Part from the other ranks.

    What is MPI's is given back at the end of a process that has come to here; one that ends
    otherwise is a crash for the launcher, which ends the others.
    """
    ProgressThread.stop()
    atexit.register(say_goodbye)


def _create(options: Any, _backend_options: Any) -> MPIProcessGroup:
    """Called by ``init_process_group`` and ``new_group``, on all ranks of the new group."""
    from mpi4py import MPI

    progress = ProgressThread.of_process()
    world = MPI.COMM_WORLD
    members = list(options.global_ranks_in_group) or list(range(world.size))
    if members == list(range(world.size)):
        comm = progress.call(world.Dup)
    else:
        group = world.group.Incl(members)
        tag = _tag(options.group_id)
        comm = progress.call(lambda: world.Create_group(group, tag))
    direct = Direct(progress.call(comm.Dup))
    return MPIProcessGroup(comm, direct, progress, options.timeout)


def _tag(name: str) -> int:
    """A number of the group's name, so that groups with members in common do not meet."""
    return int.from_bytes(name.encode(), "big") % 32749
