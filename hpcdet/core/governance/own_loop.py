"""``context.governance`` of a loop of one's own: models, batches, backward passes and steps."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from hpcdet.core.governance.governed_batch import GovernedBatch
from hpcdet.core.governance.governed_saves import AccountedGovernance
from hpcdet.errors import ConfigError, UsageError
from hpcdet.policy.codes import PolicyRefused
from hpcdet.process.console import say
from hpcdet.train.attempt.session import Session

if TYPE_CHECKING:  # imported where there is a policy only
    from hpcdet.guard.stepping.named_batches import Named, Names

M = TypeVar("M", bound=torch.nn.Module)
O = TypeVar("O", bound=torch.optim.Optimizer)  # noqa: E741


class LoopGovernance(AccountedGovernance):
    """The policy of the experiment, if it has one; without one all calls do what loops do.

        model = context.governance.model(model)
        for rows in order:
            with context.governance.batch(sources=names[rows]):
                context.governance.backward(loss(model, rows))
            context.governance.step(optimizer)

    All ranks make the same calls. Checkpoints of ``context.checkpoint`` carry the account of it;
    what ``context.checkpoint.latest`` gave is verified before the first batch, once the loop has
    put its weights back.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._batches = 0  # of this attempt
        self._batch: GovernedBatch | None = None

    def model(self, model: M) -> M:
        """Route the gradients of a model that learns, in place, before anything wraps it.

        Raises:
            PolicyRefused: its parameters are not each in one layer, or it cannot be routed.
            ConfigError: the trial is to be exact at any number of ranks, too.
            UsageError: a batch has been trained already.
        """
        if self.guard is None:
            return model
        self._refuse_unenforced()
        if self._ready:
            raise UsageError(
                "a batch has been trained already",
                where="governance.model",
                hint="give all models to governance before the first batch",
            )
        from hpcdet.guard.routing.given_rows import check_rows

        self.take(model)
        self.guard.meet(())
        guard = self.guard
        check_rows(model, lambda: guard.under_way)
        return model

    def _refuse_unenforced(self) -> None:
        assert self.guard is not None
        policy = self.guard.policy
        memory = policy.memorization
        for asked, where, repair in (
            (self._session.virtual, "reproducibility.elastic: exact", "leave it out, or train"),
            (memory and memory.twins, "governance.policy: memorization.twins", "train"),
            (memory and memory.canaries, "governance.policy: memorization.canaries", "train"),
            (policy.assurance == "isolated", "governance.policy: assurance: isolated", "train"),
        ):
            if asked:
                raise ConfigError(
                    "this is not enforced in a loop of one's own",
                    where=where,
                    hint=f"{repair} a PyTorchTrial",
                )

    def optimizer(self, optimizer: O) -> O:
        """Account for an optimizer from here on, which does not step with all others.

        One that steps when all others step, after each of their windows, need not be named.

        Raises:
            PolicyRefused: its parameters have gradients already (P15).
        """
        if self.guard is not None:
            watched = self.guard.optimizers.watched
            if not any(one is optimizer for one in watched):
                if any(one.grad is not None for g in optimizer.param_groups for one in g["params"]):
                    raise PolicyRefused(
                        "P15",
                        "its parameters have gradients of batches before",
                        where="governance.optimizer",
                        hint="name it when it is made",
                    )
                self.guard.optimizers.watch(optimizer)
        return optimizer

    @contextlib.contextmanager
    def batch(
        self, sources: Names, counts: Named | None = None, *, weighed: bool = False
    ) -> Iterator[GovernedBatch]:
        """Around the forward and backward passes of a batch, or of a part that is accumulated.

        Args:
            sources: for each row that the model is given, on this rank, the name of its source,
                or those of all sources that it was made from.
            counts: rows of each source in the whole batch, over all ranks. Without them ranks
                tell each other, one message per batch. They are compared with the rows at the
                first batch of an attempt and every ``probe_every``.
            weighed: the loss is weighed so that the gradients of all ranks come to those of the
                mean over all rows. Else ranks with shares of different size must ask ``weight``.

        Raises:
            UsageError: the counts are not those of the rows; a batch is under way.
            PolicyRefused: the policy does not know a source (G113) or accepts no mixtures (P01);
                no model was given to governance (P16).
        """
        if self.guard is None:
            yield GovernedBatch.plain(sources, self._session.peers)
            return
        from hpcdet.guard.stepping.named_batches import count

        self._session.refuse_ungoverned()
        if self.guard.under_way is not None:
            raise UsageError("a batch is under way", where="governance.batch")
        self.verify()
        every = self.guard.policy.probe_every
        due = self._batches == 0 or bool(every and self._batches % every == 0)
        found = count(sources, counts, self._session.peers.allgather, verify=due)
        self.guard.meet(found.mixtures)
        weight = found.weight(self._session.ranks.world)
        made = GovernedBatch(weight, self._probe if due else None, asked=weighed)
        with self.guard.batch(found.own, found.counts):
            self._batch = made
            try:
                yield made
            finally:
                self._batch = None
        if due:
            self._after_probe(made)
        self._batches += 1

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """``loss.backward(**options)``, accounted for; inside of ``batch``.

        Args:
            loss: a mean over this rank's rows, or what a ``GradScaler`` has made of it.

        Raises:
            PolicyRefused: there is no batch (P12); gradients are left of before a step (P15).
            UsageError: ranks have shares of different size, and nobody has weighed the loss.
        """
        if self.guard is None:
            loss.backward(**options)  # type: ignore[no-untyped-call]
            return
        if self._batch is None:
            raise PolicyRefused(
                "P12",
                "no batch is under way, so that nobody knows whose rows the loss is of",
                where="governance.backward",
                hint="call it inside of `with context.governance.batch(sources=...):`",
            )
        self._batch.check_weighed()
        with self.guard.passing():
            loss.backward(**options)  # type: ignore[no-untyped-call]

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        clip_grads: Callable[[Any], Any] | None = None,
        scaler: Any = None,
    ) -> None:
        """Step an optimizer by means over what each layer has admitted; forget its gradients.

        Args:
            clip_grads: called with parameters before the step; once for each set of layers that
                the same sources may change, but under assurance ``direct``.
            scaler: a ``GradScaler`` that has scaled the loss; the loop updates it.

        Raises:
            PolicyRefused: a parameter is in no governed model (P02); gradients that were not
                computed by ``backward``, or of passes that are unknown (P15).
        """
        stepping: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.guard is not None:
            self._session.refuse_ungoverned()
            self.guard.optimizers.adopt(optimizer)
            stepping = self.guard.optimizers.step(optimizer, zeroes=True, scaler=scaler)
        with stepping:
            if clip_grads is not None:
                if scaler is not None:
                    with contextlib.suppress(RuntimeError):  # the code has done it already
                        scaler.unscale_(optimizer)
                if self.guard is not None:
                    self.guard.optimizers.clip(optimizer, clip_grads)
                else:
                    clip_grads([one for group in optimizer.param_groups for one in group["params"]])
            if scaler is not None:
                scaler.step(optimizer)
            else:
                optimizer.step()
        optimizer.zero_grad()

    # -- probes ------------------------------------------------------------------------------

    def _probe(self, losses: Callable[[Any], torch.Tensor], data: Any) -> Any:
        """Probe the rows of the batch under way; what was measured."""
        from hpcdet.data import rng
        from hpcdet.guard.audit import audit
        from hpcdet.guard.probing.whole_models import whole

        assert self.guard is not None
        if self._lacks_room():
            return None
        generators = self._session.registered.generators
        before = rng.capture(generators)
        try:
            with whole(self.guard.models.models):
                return audit(self.guard, data, losses)
        finally:
            rng.restore(before, generators)

    def _lacks_room(self) -> bool:
        """Whether parameters are divided, and some rank cannot hold all of them."""
        from hpcdet.guard.probing.whole_models import is_divided, lacks_room

        assert self.guard is not None
        models = self.guard.models.models
        if not is_divided(models):
            return False
        return any(self._session.peers.allgather(lacks_room(models, self._session.device)))

    def _after_probe(self, batch: GovernedBatch) -> None:
        """Put down what was measured, or that nothing was; all ranks call together."""
        from hpcdet.guard.audit import joined

        mine = None if batch.findings is None else dataclasses.asdict(batch.findings)
        everyone = [one for one in self._session.peers.allgather(mine) if one is not None]
        found = joined(everyone, self._batches) if everyone else {}
        if self.state is not None and found:
            self.state.probed(found)
        if not self._session.ranks.chief:
            return
        if found:
            self._session.tracker.record("governance", event="probe", **found)
            if self.accounts is not None:
                self.accounts.probed(found)
        elif self._batches == 0:
            self._session.tracker.record("governance", event="unprobed", step=self._batches)
            say(
                "governance: rows are not probed: call batch.probe(losses, data) inside of "
                "`with context.governance.batch(...) as batch:` (sharded: it must fit each rank)"
            )
