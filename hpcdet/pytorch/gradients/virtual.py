"""One step of training as several virtual ranks: ``reproducibility.elastic: exact``.

What a virtual rank sees of a step depends on its number and the step alone: its share of the
batch, its random numbers, the buffers that all had before. What it leaves behind is kept apart
until all have had their turn: gradients are folded in tree order (``train.data.virtual_ranks``),
its metrics and reducers are its own, and of the buffers those of virtual rank 0 are everybody's,
as rank 0's are with DDP. Optimizers step once, after all.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from hpcdet.errors import ConfigError
from hpcdet.pytorch.gradients import buffers as _buffers
from hpcdet.pytorch.gradients.apart import Apart, Buffers, Group, State
from hpcdet.pytorch.metrics.metrics import Tally
from hpcdet.pytorch.metrics.reducers import MetricReducer, Reducer
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.data import rng
from hpcdet.train.data.virtual_ranks import WHERE, Fold, TreeSum, Virtual, total
from hpcdet.train.telemetry.phases import Phases

Parameters = Mapping[str, torch.nn.Parameter]
Leaf = list[torch.Tensor]


class Elastic:
    """The virtual ranks of this rank, while they train and validate.

    Args:
        models: wrapped so far, as the user made them; parameters by name, and buffers, are theirs.
        reducers: the user's, by name.
        generators: registered by the user.
        phases: told what time is spent on.
    """

    def __init__(
        self,
        virtual: Virtual,
        peers: Peers,
        models: Callable[[], Sequence[torch.nn.Module]],
        reducers: Callable[[], Mapping[str, MetricReducer]],
        generators: Mapping[str, rng.Generator],
        phases: Phases,
    ) -> None:
        self.virtual = virtual
        self._phases = phases
        self.current: int | None = None
        self._peers = peers
        self._models = models
        self._generators = generators
        self._sum = TreeSum(virtual)
        self._tallies = {v: Tally(lambda _name: Reducer.AVG) for v in virtual.mine}
        self.reducers = Apart(virtual, peers, reducers)
        self._asked: list[Callable[[], None]] = []
        self._own: dict[str, torch.Tensor] = {}
        self._known: tuple[int, Parameters] = (0, {})
        self._trained: Parameters = {}
        self._kinds: tuple[int, Mapping[str, _buffers.BufferKind]] = (0, {})

    # -- a step ------------------------------------------------------------------------------

    def step(self, batches: int, learn: Callable[[int, Tally], None]) -> None:
        """Train one global batch on all ranks.

        Args:
            batches: trained before it.
            learn: trains the share of a virtual rank and counts its metrics.
        """
        buffers = Buffers(self._models())
        self._trained = {name: p for name, p in self._all().items() if p.requires_grad}
        folds: dict[Group, Fold[Leaf]] = defaultdict(lambda: Fold(_add))
        waiting = {name: one.grad for name, one in self._all().items()}
        asked = None
        for v in self.virtual.mine:
            buffers.begin()
            with self._turn(v, "step", batches):
                learn(v, self._tallies[v])
            buffers.end(v)
            self._refuse_strangers(waiting)
            for group, leaf in self._leaves().items():
                folds[group].push(v, leaf)
            if asked is not None and asked != len(self._asked):
                raise ConfigError(
                    f"train_batch of virtual rank {v} asked for {len(self._asked)} steps of "
                    f"optimizers, the one before for {asked}",
                    where=WHERE,
                    hint="whether to step must not depend on the share of the batch",
                )
            asked = len(self._asked)
        with self._phases.within("communication"):
            buffers.settle(self.virtual, self._alike())
            self._give(folds)
        self.common("step", batches)
        for one in self._asked:
            one()
        self._asked = []

    @contextlib.contextmanager
    def _turn(self, v: int, *where: int | str) -> Iterator[None]:
        """The turn of a virtual rank: its random numbers and reducers are in place."""
        self.virtual.plant(self._generators, *where, v)
        self._asked, self._own, self.current = [], {}, v
        try:
            with self.reducers.of(v):
                yield
        finally:
            self.current = None

    def common(self, *where: int | str) -> None:
        """Use random numbers that all ranks share, wherever they are drawn."""
        self.virtual.plant(self._generators, *where, "common")

    def later(self, action: Callable[[], None]) -> None:
        """Do something once all virtual ranks have had their turn: a step of an optimizer.

        Outside of a turn: now.
        """
        if self.current is None:
            action()
        else:
            self._asked.append(action)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
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

    def guard(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
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
            self._kinds = (len(models), _buffers.alike(models, self._peers))
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
        if self.virtual.ranks.world == 1:
            summed = self._flat(total(dict(fold.parts), self.virtual.count, _add))
        else:
            flat: Fold[torch.Tensor] = Fold(torch.Tensor.add_)
            flat.parts = [(block, self._flat(one)) for block, one in fold.parts]
            summed = self._sum(flat)
        pieces = torch.split(summed, [one.numel() for one in leaf] + [self._rest(leaf)])
        return [piece.view(one.shape) for piece, one in zip(pieces, leaf, strict=False)]

    def _flat(self, leaf: Leaf) -> torch.Tensor:
        return torch.cat([*(one.reshape(-1) for one in leaf), leaf[0].new_zeros(self._rest(leaf))])

    def _rest(self, leaf: Leaf) -> int:
        size = sum(one.numel() for one in leaf)
        return self._sum.padded(size) - size

    def _give(self, folds: Mapping[Group, Fold[Leaf]]) -> None:
        """Add the sums over all virtual ranks to the gradients that wait for an optimizer."""
        for group, parameters in self._groups().items():
            *sums, had = self._summed(folds[group])
            for one, summed, present in zip(
                parameters.values(), sums, (had > 0).tolist(), strict=True
            ):
                if present:
                    one.grad = summed if one.grad is None else one.grad.add_(summed)

    def _refuse_strangers(self, waiting: Mapping[str, torch.Tensor | None]) -> None:
        """Gradients that are there without ``context.backward`` would not be exact."""
        for name, one in self._all().items():
            if one.grad is not None and one.grad is not waiting.get(name):
                raise ConfigError(
                    f"the gradient of {name} was computed without context.backward",
                    where=WHERE,
                    hint="call context.backward(loss) in train_batch, not loss.backward()",
                )

    # -- metrics -----------------------------------------------------------------------------

    def report(self) -> dict[str, float]:
        """Training metrics over all virtual ranks since the last report; they begin anew."""
        found = self.reduced(self._tallies)
        for tally in self._tallies.values():
            tally.clear()
        return found

    def reduced(self, tallies: Mapping[int, Tally]) -> dict[str, float]:
        """Metrics that each virtual rank of this one has counted, over all of them."""
        everyone = self._everyone([tallies[v].plain() for v in self.virtual.mine])
        return tallies[self.virtual.mine[0]].combined(everyone)

    def _everyone(self, mine: list[Any]) -> list[Any]:
        """Gather the values of all virtual ranks, in their order, on all ranks."""
        return [value for of_rank in self._peers.allgather(mine) for value in of_rank]

    @contextlib.contextmanager
    def evaluating(self, v: int, batches: int, index: int) -> Iterator[None]:
        """The turn of a virtual rank at a batch of the validation after so many batches."""
        with self._turn(v, "validation", batches, index):
            yield

    # -- state -------------------------------------------------------------------------------

    def state(self, reducers: Iterable[str]) -> State:
        """State of all virtual ranks and of the common random numbers; shared.

        Args:
            reducers: names of those that count in training.
        """
        mine = [self._tallies[v].state() for v in self.virtual.mine]
        return {
            "ranks": self.virtual.count,
            "training_metrics": self._everyone(mine),
            "reducers": self.reducers.state(reducers),
            "rng": self._peers.broadcast(rng.capture(self._generators)),
        }

    def load(self, state: State, device: torch.device) -> None:
        """The inverse of ``state``, whichever rank now has which virtual ranks.

        Raises:
            ConfigError: the state is of another number of virtual ranks.
        """
        if state["ranks"] != self.virtual.count:
            raise ConfigError(
                f"the checkpoint is of {state['ranks']} virtual ranks, not {self.virtual.count}",
                where="reproducibility.virtual_ranks",
                hint=f"go on with {state['ranks']}",
            )
        for v, tally in self._tallies.items():
            tally.load(state["training_metrics"][v], device)
        self.reducers.load(state["reducers"])
        rng.restore(state["rng"], self._generators)


def _add(left: Leaf, right: Leaf) -> Leaf:
    torch._foreach_add_(left, right)
    return left
