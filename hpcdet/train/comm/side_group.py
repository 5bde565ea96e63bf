"""A process group over all ranks beside the one that training uses.

Each gloo group has a thread of its own that looks for messages 100 times a second whether there
are any or not. Where all cores train, that costs 2 % of a step for every further group. So those
beside the training share the thread of the default group where that is gloo, too; their messages
stay apart.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hpcdet.train.meeting import gloo
from hpcdet.train.meeting.liveness import NEVER

_NAME = "hpcdet_beside"


def new_group() -> dist.ProcessGroup:
    """A gloo group over all ranks; all of them call this, in their main threads."""
    kind = "gloo"
    if _devices() is not None:
        kind = _NAME
        if kind not in dist.Backend.backend_list:
            # as gloo: a default group that is bound to an accelerator asks each group for its own
            where = list(dist.Backend.backend_capability["gloo"])
            dist.Backend.register_backend(kind, _create, extended_api=True, devices=where)
    made: dist.ProcessGroup = dist.new_group(backend=kind, timeout=NEVER)
    return made


def _devices() -> Any:
    """The gloo devices of the default group; None if it has none or an older torch hides them."""
    group = dist.distributed_c10d._get_default_group()
    try:
        found = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # it is for accelerators only
        return None
    is_gloo = isinstance(found, dist.ProcessGroupGloo)
    return getattr(getattr(found, "options", None), "_devices", None) if is_gloo else None


def _create(options: Any, _: Any) -> dist.ProcessGroupGloo:
    """Called by ``dist.new_group``."""
    own = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    own._devices = _devices()
    own._threads = 1
    own._timeout = options.timeout
    return gloo.new_group(options.store, options.group_rank, options.group_size, own)
