"""The section ``worker`` of a config: allocations, and how they begin trials."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from hpcdet.store.fs.typed_fields import Key


@dataclass(frozen=True)
class Worker:
    """``worker``. Times in seconds.

    ``lanes`` is a number once the experiment has been made; ``spares``: None leaves it to
    ``control.fleet.capacity``.
    """

    mode: Literal["shared", "per_trial"] = "shared"
    """shared: an allocation takes trial after trial; per_trial: one job for each."""
    lanes: Annotated[int, Key(ge=1)] | Literal["auto"] = 1
    """Trials side by side in one allocation, on one node; auto: as many as fit into a node."""
    node_groups: Annotated[int, Key(ge=1)] = 1
    """Groups of nodes in one allocation, each of a trial's size and with its own lanes; as many as
    the partition's least number of nodes takes."""
    min_segment_s: Annotated[float, Key(ge=0)] = 300
    """A trial is not begun with less than this many seconds left in the allocation."""
    idle_s: Annotated[float, Key(ge=0)] = 120
    """An allocation with nothing to do is given back after this many seconds."""
    spares: Annotated[int | None, Key(ge=0)] = None
    """Tasks that wait to replace ended ones where no job can be submitted later; fewer where the
    scheduler bounds how many may wait, more where many are preempted; null: max_restarts each."""
    warm: Literal["auto", "off"] = "auto"
    """auto: ranks begin as copies of a process that has imported torch, where that can be; off:
    each imports everything anew."""
    warm_imports: list[Annotated[str, Key(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]] = field(
        default_factory=list
    )
    """Modules that this process imports as well: such as take long, start no thread and compute
    nothing while they are imported."""
