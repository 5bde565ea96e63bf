"""Probes of a governed trial: when they are due, and what of its code they run.

They collate a few samples anew, and run ``train_batch``, and the trial's ``losses`` where it has
one, several times on small parts of a batch: backward passes, steps of optimizers and updates of
metric reducers do nothing meanwhile, and schedulers are put back.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterable, Iterator
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcdet.data import rng
from hpcdet.data.sample_order import Slice
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.process.console import say
from hpcdet.pytorch.api.context import PyTorchTrialContext
from hpcdet.pytorch.api.data_loader import DataLoader
from hpcdet.pytorch.api.trial import PyTorchTrial

if TYPE_CHECKING:
    from hpcdet.guard.audit import Findings, Loss
    from hpcdet.guard.guard import Guard


RECORDS = 4
"""Records of each rank's share that are compared at a probe."""


class Probing:
    """Probes at the first step of each attempt, and then every ``probe_every`` batches.

    And where kinds of rows meet in a batch that no probe of the attempt has seen together, as where
    sources come one after the other. They may lie on several ranks, where none can try them: after
    a probe that was for them the next is after twice as many batches.

    Attributes:
        loader: of the training, whose records are compared with the manifests of their sources,
            and whose collating is probed; None of data without indices.
    """

    loader: DataLoader | None = None

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext, guard: Guard) -> None:
        self._trial, self._context, self._guard = trial, context, guard
        self._session = context.core.session
        self._begun = False
        self._found: Findings | None = None
        self._tried = False
        self._together: set[tuple[str, str]] = set()
        self._until, self._wait = 0, 1
        self._compared = False
        self._records: tuple[int, list[str]] = 0, []

    def before(self, part: Slice, batch: Any, batches: int) -> None:
        """Probe this rank's first share of a batch, on its device, if that is due.

        Raises:
            PolicyRefused, GovernanceBroken: rows are not what routing takes them for.
        """
        from hpcdet.guard.audit import audit
        from hpcdet.guard.probing.whole_models import whole

        if not self._due(part, batches):
            return
        self._begun = True
        self._compare_records(part)
        self._probe_collated(part)
        if self._lacks_room():
            self._together = _pairs(self._guard.kinds.names)  # nor will it have later
            return
        self._tried = True
        generators = self._session.registered.generators
        before = rng.capture(generators)
        try:
            phases = self._session.profile.phases
            with (
                phases.within("other"),
                self._context.reducer.silence(),
                whole(self._guard.models.models),
                self._aside(),
            ):
                self._found = audit(self._guard, batch, *self._losses(part, batches))
        finally:
            rng.restore(before, generators)

    def _due(self, part: Slice, batches: int) -> bool:
        """Whether to probe before a batch: equal on all ranks, since all know its whole."""
        every = self._guard.policy.probe_every
        if not self._begun or (every and batches % every == 0):
            return True
        names, codes = self._guard.kinds.names, self._guard.kinds_of(part.whole)
        if codes is None or batches < self._until or _pairs(names) <= self._together:
            return False
        if _pairs(names[code] for code in np.unique(codes) if code < len(names)) <= self._together:
            return False
        self._until, self._wait = batches + self._wait, 2 * self._wait
        return True

    def _lacks_room(self) -> bool:
        """True if some rank cannot hold the whole model: nothing is probed, and a warning says so.

        Raises:
            PolicyRefused: isolation is wanted, which probes have to show (P11).
        """
        from hpcdet.guard.probing.whole_models import lacks_room

        if not self._context.reducer.shares_parameters:
            return False
        mine = lacks_room(self._guard.models.models, self._context.device)
        lacks = next(filter(None, self._session.peers.allgather(mine)), "")
        if not lacks:
            return False
        why = f"fsdp2 has divided the parameters, each rank has to gather them all, {lacks}"
        self._guard.refuse_unprobed(why)
        if self._session.ranks.chief:
            self._session.tracker.record("governance", event="unprobed", why=why)
            say(f"governance: rows are not probed: {why}")
        return True

    def _probe_collated(self, part: Slice) -> None:
        """Probe what makes batches of samples, here, wherever workers do it.

        Raises:
            PolicyRefused: rows are not the samples in their places (P12).
        """
        from hpcdet.guard.audit import audit_collated

        loader, seed = self.loader, self._context.core.seed
        if loader is not None:
            own = part.whole[part.whole < len(loader.dataset)]
            audit_collated(
                self._guard, own, lambda wanted: loader.collated(wanted, seed, part.epoch)
            )

    def _compare_records(self, part: Slice) -> None:
        """Compare some records of a share with the manifests of their sources."""
        governance = self._context.core.governance.state
        self._compared = governance is not None and self.loader is not None
        if governance is None or self.loader is None:
            return
        generators = self._session.registered.generators
        before = rng.capture(generators)
        try:
            dataset = self.loader.dataset
            own = part.indices[part.indices < len(dataset)]  # behind them are canaries
            self._records = governance.chains.differing(dataset, own[:RECORDS])
        except GovernanceBroken as error:  # said on all ranks
            self._records = 0, [error.what]
        finally:
            rng.restore(before, generators)

    def _told_records(self) -> None:
        """Say of all ranks what was compared; all call together.

        Raises:
            GovernanceBroken: a record is not what its source's manifest lists (G111).
        """
        everyone = self._session.peers.allgather(self._records)
        wrong = [line for one in everyone for line in one[1]]
        if wrong:
            raise GovernanceBroken(
                "G111",
                f"the training reads what was not admitted: {wrong[0]}",
                where="record_bytes",
                hint="put the data back from a backup; or record_bytes(index) gives other bytes "
                "than `hpcdet data manifest --records` has digested",
            )
        compared = sum(one[0] for one in everyone)
        if compared and self._session.ranks.chief:
            self._session.tracker.record("governance", event="records", compared=compared)

    def after(self, batches: int) -> None:
        """Put down what was measured before this batch; all ranks call together.

        Raises:
            GovernanceBroken: a record is not what its source's manifest lists (G111).
        """
        from hpcdet.guard.audit import joined

        if self._compared:
            self._compared = False
            self._told_records()
        if not self._tried:
            return
        self._tried = False
        mine = None if self._found is None else dataclasses.asdict(self._found)
        everyone = [one for one in self._session.peers.allgather(mine) if one is not None]
        if not everyone:
            return
        known = len(self._together)
        self._together.update(*(_pairs(one["kinds"]) for one in everyone))
        if len(self._together) > known:
            self._until, self._wait = 0, 1
        found = joined(everyone, batches)
        if (state := self._context.core.governance.state) is not None:
            state.probed(found)
        if self._session.ranks.chief:
            self._session.tracker.record("governance", event="probe", **found)
            if (accounts := self._context.core.governance.accounts) is not None:
                accounts.probed(found)

    def _losses(self, part: Slice, batches: int) -> list[Loss]:
        """The loss that ``train_batch`` trains on, and those of ``losses``."""

        def said(batch: Any) -> torch.Tensor:
            with self._context.learning.precision():
                return self._trial.losses(batch)

        def trained(batch: Any) -> torch.Tensor:
            return self._trained(batch, part, batches)

        has = type(self._trial).losses is not PyTorchTrial.losses
        return [trained, said] if has else [trained]

    def _trained(self, batch: Any, part: Slice, batches: int) -> torch.Tensor:
        taken = self._context.learning.taken = []
        with self._context.learning.precision():
            self._trial.train_batch(batch, part.epoch, batches)
        if not taken:
            raise PolicyRefused(
                "P15",
                "train_batch computes no gradient by context.backward",
                where="train_batch",
                hint="call context.backward(loss), not loss.backward()",
            )
        total: torch.Tensor = sum(taken[1:], taken[0])
        return total

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Backward passes hand their loss over; nothing steps, and what counts is put back."""
        context = self._context
        schedulers = [(one, copy.deepcopy(one.state_dict())) for one in context.lr_schedulers]
        groups = [group for one in context.optimizers for group in one.param_groups]
        rates = [{key: group[key] for key in group if key != "params"} for group in groups]
        reducers, scaler = list(context.reducers), context.learning.scaler
        for one in reducers if scaler is None else [*reducers, scaler]:
            vars(one)["update"] = _never
        if scaler is not None:
            vars(scaler)["scale"] = _as_it_is
        context.learning.taken = []
        try:
            yield
        finally:
            context.learning.taken = None
            for one in reducers if scaler is None else [*reducers, scaler]:
                del vars(one)["update"]
            if scaler is not None:
                del vars(scaler)["scale"]
            for scheduler, state in schedulers:
                scheduler.load_state_dict(state)
            for group, rate in zip(groups, rates, strict=True):
                group.update(rate)


def _pairs(kinds: Iterable[str]) -> set[tuple[str, str]]:
    """Kinds that meet, each with itself, too."""
    return set(combinations_with_replacement(sorted(kinds), 2))


def _never(*_args: Any, **_kwargs: Any) -> None:
    pass


def _as_it_is(loss: Any) -> Any:
    return loss
