"""Gradients of virtual ranks: ``reproducibility.elastic: exact``.

Each virtual rank's gradients are kept apart until all have had their turn; then they are folded in
tree order (``hpcdet.data.virtual_ranks``). Of the buffers those of virtual rank 0 are everybody's,
as rank 0's are with DDP. Optimizers step once, after all.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy

from hpcdet.core.training import Session
from hpcdet.data.virtual_ranks import WHERE, Fold, TreeSum, Virtual, total
from hpcdet.errors import ConfigError
from hpcdet.pytorch.gradients import buffers as _buffers
from hpcdet.pytorch.gradients.reducer import GradientReducer
from hpcdet.pytorch.gradients.virtual_rank_state import Buffers, Group

Parameters = Mapping[str, torch.nn.Parameter]
Leaf = list[torch.Tensor]


class VirtualReducer(GradientReducer):
    """Sums the gradients of all virtual ranks, in an order that their number alone decides.

    Attributes:
        current: the virtual rank whose turn it is; None between turns.
    """

    def __init__(
        self,
        session: Session,
        models: Callable[[], Sequence[torch.nn.Module]],
        virtual: Virtual,
    ) -> None:
        super().__init__(session, models)
        self.current: int | None = None
        self._virtual = virtual
        self._sum = TreeSum(virtual)
        self._known: tuple[int, Parameters] = (0, {})
        self._kinds: tuple[int, Mapping[str, _buffers.BufferKind]] = (0, {})
        self._asked: list[Callable[[], None]] = []
        self._own: dict[str, torch.Tensor] = {}
        self._asked_before: int | None = None

    def distribute(self, model: torch.nn.Module) -> torch.nn.Module:
        model = super().distribute(model)
        for one in model.parameters() if self._virtual.ranks.world > 1 else ():
            if not is_lazy(one) and one.numel():  # all begin with rank 0's, as with DDP
                values = one.detach().contiguous()
                dist.broadcast(values.view(-1).view(torch.uint8), src=0)
                one.detach().copy_(values)
        return model

    # -- a batch -----------------------------------------------------------------------------

    def begin(self, batches: int, *, steps: bool) -> None:
        self._batches = batches
        self._buffers = Buffers(self._models())
        self._trained = {name: p for name, p in self._all().items() if p.requires_grad}
        self._folds: dict[Group, Fold[Leaf]] = defaultdict(lambda: Fold(_add))
        self._waiting = {name: one.grad for name, one in self._all().items()}
        self._asked_before = None

    @contextlib.contextmanager
    def share(self, v: int) -> Iterator[None]:
        """Around the training of a virtual rank's share; then its gradients are folded."""
        self._buffers.begin()
        with self.turn(v):
            yield
        self._buffers.end(v)
        self._refuse_strangers()
        for group, leaf in self._leaves().items():
            self._folds[group].push(v, leaf)
        asked, before = len(self._asked), self._asked_before
        if before is not None and before != asked:
            raise ConfigError(
                f"train_batch of virtual rank {v} asked for {asked} steps of optimizers, the one "
                f"before for {before}",
                where=WHERE,
                hint="whether to step must not depend on the share of the batch",
            )
        self._asked_before = asked

    @contextlib.contextmanager
    def turn(self, v: int) -> Iterator[None]:
        """Around whatever a virtual rank does."""
        self._asked, self._own, self.current = [], {}, v
        try:
            yield
        finally:
            self.current = None

    def reduce(self) -> None:
        self.summing()
        with self._phases.within("communication"):
            self._buffers.settle(self._virtual, self._alike())
            self._give()
        self.summed()
        # what is drawn from here on is drawn by all ranks alike
        self._virtual.plant(self._session.registered.generators, "step", self._batches, "common")
        for one in self._asked:
            one()
        self._asked = []

    def apply(self, action: Callable[[], None]) -> None:
        """Do something once all virtual ranks have had their turn; outside of a turn now."""
        if self.current is None:
            action()
        else:
            self._asked.append(action)

    @contextlib.contextmanager
    def collect(self, loss: torch.Tensor) -> Iterator[None]:
        """Around a backward pass: its gradients are this virtual rank's, not yet everybody's.

        Raises:
            ConfigError: an optimizer was to step before it.
        """
        if self._asked:
            raise ConfigError(
                "train_batch calls backward after step_optimizer, whose step comes only after all "
                "virtual ranks have had their turn",
                where=WHERE,
                hint="call step_optimizer at the end, or train without elastic: exact",
            )
        parameters = self._all()
        before = {name: one.grad for name, one in parameters.items()}
        for name, one in parameters.items():
            one.grad = self._own.get(name)
        try:
            yield
        finally:
            for name, one in parameters.items():
                if one.grad is not None:
                    self._own[name] = one.grad
                one.grad = before[name]

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_step_pre_hook(self._guard)

    def check_scaler(self) -> None:
        raise ConfigError(
            "a scaler of one's own is updated before all virtual ranks have had their turn",
            where=WHERE,
            hint="use context.experimental.use_amp()",
        )

    def _guard(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Refuse, as a hook of optimizers, a step within a virtual rank's turn.

        Raises:
            ConfigError: the code does.
        """
        if self.current is not None:
            raise ConfigError(
                f"{type(optimizer).__name__}.step was called in train_batch",
                where=WHERE,
                hint="call context.step_optimizer, which waits for all virtual ranks",
            )

    # -- gradients ---------------------------------------------------------------------------

    def _all(self) -> Parameters:
        """By name, the model's number in front; one that models share has one name."""
        models = self._models()
        if self._known[0] != len(models):
            named = {
                one: f"{number}.{name}"
                for number, model in reversed(list(enumerate(models)))
                for name, one in model.named_parameters()
            }
            self._known = (len(models), {name: one for one, name in named.items()})
        return self._known[1]

    def _alike(self) -> Mapping[str, _buffers.BufferKind]:
        """The buffers that all ranks share; collected once, so that no step waits for it."""
        models = self._models()
        if self._kinds[0] != len(models):
            self._kinds = (len(models), _buffers.alike(models, self._session.peers))
        return self._kinds[1]

    def _groups(self) -> dict[Group, Parameters]:
        groups: dict[Group, dict[str, torch.nn.Parameter]] = defaultdict(dict)
        for name, one in self._trained.items():
            groups[one.device, one.dtype][name] = one
        return dict(groups)

    def _leaves(self) -> dict[Group, Leaf]:
        """This virtual rank's gradients, and behind them which parameters had any, as 1 and 0."""
        for name in self._own.keys() - self._trained.keys():
            raise ConfigError(
                f"parameter {name} was frozen when the batch began, and now has a gradient",
                where=WHERE,
                hint="set requires_grad between batches, in a callback",
            )
        return {group: self._leaf(parameters) for group, parameters in self._groups().items()}

    def _leaf(self, parameters: Parameters) -> Leaf:
        pieces, had = [], []
        for name, one in parameters.items():
            own = self._own.get(name)
            if own is not None and own.layout is not torch.strided:
                raise ConfigError(
                    f"parameter {name} has sparse gradients",
                    where=WHERE,
                    hint="use sparse=False, or train without elastic: exact",
                )
            had.append(float(own is not None))
            pieces.append(torch.zeros_like(one) if own is None else own.detach())
        return [*pieces, pieces[0].new_tensor(had)]

    def _summed(self, fold: Fold[Leaf]) -> Leaf:
        """Over all virtual ranks, in one tensor with any number of ranks.

        What norms of gradients add up, and in which order, depends on how these lie in memory.
        """
        leaf = fold.parts[0][1]
        if self._virtual.ranks.world == 1:
            summed = self._sum.flat(total(dict(fold.parts), self._virtual.count, _add))
        else:
            flat: Fold[torch.Tensor] = Fold(torch.Tensor.add_)
            flat.parts = [(block, self._sum.flat(one)) for block, one in fold.parts]
            summed = self._sum(flat)
        return self._sum.parts(summed, [one.shape for one in leaf])

    def _give(self) -> None:
        """Add the sums over all virtual ranks to the gradients that wait for an optimizer."""
        for group, parameters in self._groups().items():
            *sums, had = self._summed(self._folds[group])
            for one, summed, present in zip(
                parameters.values(), sums, (had > 0).tolist(), strict=True
            ):
                if present:
                    one.grad = summed if one.grad is None else one.grad.add_(summed)

    def _refuse_strangers(self) -> None:
        """Gradients that are there without ``context.backward`` would not be exact."""
        for name, one in self._all().items():
            if one.grad is not None and one.grad is not self._waiting.get(name):
                raise ConfigError(
                    f"the gradient of {name} was computed without context.backward",
                    where=WHERE,
                    hint="call context.backward(loss) in train_batch, not loss.backward()",
                )


def _add(left: Leaf, right: Leaf) -> Leaf:
    torch._foreach_add_(left, right)
    return left
