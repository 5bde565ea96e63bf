"""``dist.init_process_group`` in code that is run as it is.

Determined's launcher left that call to the code, before ``core.init``. Here the ranks meet by
hpcdet's own means, so the call makes hpcdet's group, whatever it asks for.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist
from torch.distributed import HashStore, distributed_c10d  # type: ignore[attr-defined]

from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.train.attempt import startup


def take_over() -> None:
    """From now on ``dist.init_process_group`` in a rank gives the group of the attempt's ranks.

    A call with a ``store`` is torch's as before: hpcdet's own, or that of a launcher in the code.
    """
    torchs = distributed_c10d.init_process_group

    @functools.wraps(torchs)
    def init_process_group(*args: Any, **options: Any) -> None:
        if options.get("store") is not None or AttemptLocation.from_environment() is None:
            torchs(*args, **options)
        elif Ranks.from_environment().world > 1:
            startup.meet()
        elif not dist.is_initialized():  # one rank needs none, but has asked for one
            torchs("gloo", store=HashStore(), rank=0, world_size=1)

    distributed_c10d.init_process_group = dist.init_process_group = init_process_group
