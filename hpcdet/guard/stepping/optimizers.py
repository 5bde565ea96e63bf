"""Optimizers of governed models: their windows, and gradients made means over what counts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from hpcdet.guard.routing.governed_models import GovernedModels
from hpcdet.guard.stepping.untouched import Untouched
from hpcdet.guard.stepping.windows import Vector, Window
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy

Gather = Callable[[Any], Sequence[Any]]
"""Every rank's value, on every rank."""


class GovernedOptimizers:
    """The optimizers of a trial, each with a window of backward passes since its last step.

    Attributes:
        watched: in the order in which they were given.
        private_rows: ranks know their own rows only, so that shares are added up at a step.
        stepping: one of them steps, as its gradients are accounted for.
        nulls: how often a layer had no gradient at a step, since a ledger has last taken it down.
        skipped: a scaler has left a step out, since a ledger has last taken it down.
        untouched: closed layers, as the last accounted pass or step has left them.
    """

    def __init__(self, policy: CompiledPolicy, models: GovernedModels, gather: Gather) -> None:
        self.watched: list[torch.optim.Optimizer] = []
        self.nulls: Counter[str] = Counter()
        self.untouched = Untouched(models)
        self._policy, self._models, self._gather = policy, models, gather
        self._windows: list[Window] = []
        self._kept: set[int] = set()
        self._forgotten: list[int] = []  # by who is not watched yet
        self._began: Window | None = Window(0)  # of who was not named; None: it could not be told
        self._stepped = self._taken = self.skipped = self.stepping = False
        self.private_rows = True

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Account for the steps of an optimizer.

        Raises:
            PolicyRefused: it steps all parameters along one direction (P15).
        """
        _refuse_together(optimizer)
        if not self._claim(optimizer):
            self._windows.append(Window(len(self._models)))
        self.watched.append(optimizer)

    def resize(self) -> None:
        """Begin all windows again: there are more layers than before."""
        self._windows = [Window(len(self._models)) for _ in self._windows]
        self._began = Window(len(self._models))

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Account for an optimizer that steps, with all passes since the training began.

        Of windows that were loaded it gets the one of its parameters.

        Raises:
            PolicyRefused: which passes since then are its own is unknown, or it steps all
                parameters along one direction (P15).
        """
        if any(one is optimizer for one in self.watched):
            return
        _refuse_together(optimizer)
        if not self._claim(optimizer):
            if self._began is None:
                raise _unknown("others have stepped and trained on before its first step")
            self._windows.insert(len(self.watched), self._began.copy())
        self.watched.append(optimizer)
        self._forget(optimizer)

    def _claim(self, optimizer: torch.optim.Optimizer) -> bool:
        """Take the loaded window of an optimizer that is about to be watched; False: none."""
        place = len(self.watched)
        loaded = self._windows[place:]
        of = self._models.digest(optimizer) if loaded else ""
        for number, window in enumerate(loaded, place):
            if window.of == of:
                self._windows.insert(place, self._windows.pop(number))
                return True
        return False

    @property
    def open(self) -> bool:
        """True if there were backward passes since some optimizer's last step."""
        return any(one.passes for one in self._all())

    def _all(self) -> list[Window]:
        """The windows of all optimizers, and that of those to come, if all have one alike."""
        began = [] if self._began is None or self._stepped else [self._began]
        return [*self._windows, *began]

    def encode(self) -> list[dict[str, Any]]:
        """Open windows of all optimizers as plain data; all ranks call together.

        There is no message where all ranks know all rows.

        Raises:
            PolicyRefused: code has changed what only passes and steps may change (P08, P15).
        """
        self.untouched.check()
        for window in self._windows:
            self._forget_bare(window)
        for optimizer, window in zip(self.watched, self._windows, strict=False):
            window.of = self._models.digest(optimizer)
        windows = sorted((one for one in self._all() if one.of or one.passes), key=lambda w: w.of)
        everyone = self.private_rows or any(one.local for one in windows)
        parts = [one.parts() for one in windows]
        gathered = self._gather(parts) if everyone else [parts]
        return [
            window.encode([of_rank[place] for of_rank in gathered])
            for place, window in enumerate(windows)
        ]

    def load(self, saved: Sequence[dict[str, Any]]) -> None:
        """The inverse of ``encode``; optimizers that it had not begin with empty windows.

        Raises:
            PolicyRefused: it has open windows of other optimizers (P15).
        """
        windows = [Window.decode(len(self._models), one) for one in saved]
        self._windows = [one for one in windows if one.of]
        fresh = None if self._windows else Window(len(self._models))
        self._began = next((one for one in windows if not one.of), fresh)
        watched, self.watched = self.watched, []
        for optimizer in watched:
            if not self._claim(optimizer):
                if any(one.passes for one in self._windows[len(self.watched) :]):
                    raise _unknown("the checkpoint was made within windows of other optimizers")
                self._windows.insert(len(self.watched), Window(len(self._models)))
            self.watched.append(optimizer)

    def forget(self, layers: Sequence[int]) -> None:
        """Drop the state of optimizers in some layers, and what waits there for a step."""
        self._forgotten = list(layers)
        for window in self._all():
            window.shares[self._forgotten] = 0
        for optimizer in self.watched:
            self._forget(optimizer)
        for model in self._models.models:
            for one in model.parameters():
                if one.grad is not None and self._models.layer(one) in self._forgotten:
                    one.grad = None

    def _forget(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = self.by_layer(optimizer)
        forgotten = [one for layer in self._forgotten for one in parameters[layer]]
        for each in _nested(optimizer):
            for one in forgotten:
                each.state.pop(one, None)

    # -- backward passes ---------------------------------------------------------------------

    def passed(self, share: Vector, *, first: bool) -> None:
        """Account for a backward pass over rows that all ranks know.

        Args:
            share: of the rows that each layer admits.
            first: it is of the first share of this rank.
        """
        self._began = None if self._stepped else self._began
        for window in self._all():
            window.add(share, first=first)

    def passed_local(self, part: Vector, number: int, *, first: bool) -> None:
        """Account for a backward pass over rows that this rank alone knows.

        Args:
            part: of the batch's share; ``number``: of this rank's share of the batch.
        """
        for window in self._windows:
            window.add_local(part, number, first=first)

    def before_pass(self) -> None:
        """See that no gradients are there that a step has used, and which the code has dropped.

        Raises:
            PolicyRefused: there are, or code has changed gradients or weights (P15), or modules
                (P08).
        """
        if not self.stepping:
            self.untouched.check()
        if len(self._windows) > 1:
            for optimizer, window in zip(self.watched, self._windows, strict=False):
                if window.passes and self._lies_bare(optimizer, window):
                    window.lay_bare()
        for place in sorted(self._kept):
            for group in self.watched[place].param_groups:
                if any(one.grad is not None for one in group["params"]):
                    raise PolicyRefused(
                        "P15",
                        "gradients are kept over a step of their optimizer, and would be divided "
                        "twice",
                        where="step_optimizer(auto_zero_grads=False)",
                        hint="call optimizer.zero_grad() before the next context.backward",
                    )
        self._kept = set()

    def _lies_bare(self, optimizer: torch.optim.Optimizer, window: Window) -> bool:
        """Whether no gradient is here of passes that have admitted something to its layers."""
        layers = enumerate(self.by_layer(optimizer))
        admits = [one for layer, own in layers if window.shares[layer] for one in own]
        return bool(admits) and all(one.grad is None for one in admits)

    def _forget_bare(self, window: Window) -> None:
        """Leave passes out whose gradients the code has dropped; all ranks call together."""
        if len(self._windows) > 1 and window.passes > 1:
            window.forget_bare(self._gather(sorted(window.bare)))

    # -- steps -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def step(
        self, optimizer: torch.optim.Optimizer, *, zeroes: bool, scaler: Any = None
    ) -> Iterator[None]:
        """Around clipping and a step of an optimizer, whose gradients are made means before.

        Other steps of optimizers are refused (``StepWatch``). All ranks call together.

        Args:
            zeroes: the gradients are forgotten after the step.
            scaler: of gradients, by which the step is taken; it may leave it out.

        Raises:
            PolicyRefused: there are gradients of no accounted pass, or code has changed gradients
                or weights (P15), or modules (P08).
        """
        self.untouched.check()
        self._normalize(optimizer, zeroes=zeroes)
        if scaler is not None:
            _let_see(scaler, optimizer)
        self.stepping, self._taken = True, False
        try:
            yield
        finally:
            self.stepping = False
        self.skipped |= scaler is not None and not self._taken
        self.untouched.seal()

    def accounted(self, optimizer: torch.optim.Optimizer) -> bool:
        """Hear of a step of some optimizer; False: nothing accounts for it."""
        found = getattr(optimizer, "found_inf", None)  # a fused one leaves the step out itself
        self._taken |= found is None or not bool(found)
        return self.stepping

    def _normalize(self, optimizer: torch.optim.Optimizer, *, zeroes: bool) -> None:
        """Make an optimizer's gradients means over what each layer has admitted.

        A layer that has admitted nothing has no gradient, on all ranks, so that its parameters and
        their state stay as they are.
        """
        place = next(n for n, one in enumerate(self.watched) if one is optimizer)
        window, self._windows[place] = self._windows[place], Window(len(self._models))
        self._stepped = True
        self._forget_bare(window)
        if not zeroes:
            self._kept.add(place)
        everyone = self._gather(window.parts()) if self.private_rows or window.local else ()
        share = window.mean(everyone)
        for layer, parameters in enumerate(self.by_layer(optimizer)):
            there = [one for one in parameters if one.grad is not None]
            if there and not window.passes and not everyone:
                raise _stray()
            if share[layer] == 0:
                self.nulls.update([self._models.layers[layer]] if parameters else [])
                for one in there:
                    one.grad = None
            elif self._policy.normalize == "per_layer" and share[layer] != 1:
                for gradient in (one.grad for one in there if one.grad is not None):
                    gradient.div_(float(share[layer]))

    def by_layer(self, optimizer: torch.optim.Optimizer) -> list[list[torch.Tensor]]:
        """The parameters of an optimizer by layer, in the order of the models' layers."""
        found: list[list[torch.Tensor]] = [[] for _ in range(len(self._models))]
        for group in optimizer.param_groups:
            for one in group["params"]:
                found[self._models.layer(one)].append(one)
        return found

    def clip(self, optimizer: torch.optim.Optimizer, clip_grads: Callable[[Any], Any]) -> None:
        """Clip an optimizer's gradients: together those of layers that the same sources may change.

        The norm over others would let a source change the step of a layer that it may not change,
        which assurance ``direct`` permits.
        """
        by_sources: dict[tuple[bool, ...], list[torch.Tensor]] = {}
        weights = self._models.weights(self._policy.weights()) > 0
        for layer, parameters in enumerate(self.by_layer(optimizer)):
            clean = self._policy.assurance != "direct"
            sources = tuple(weights[:, layer].tolist()) if clean else ()
            by_sources.setdefault(sources, []).extend(parameters)
        for together in by_sources.values():
            if any(one.grad is not None for one in together):
                clip_grads(together)


def _nested(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """An optimizer and those that it has inside, as of Lookahead or SAM, which keep the moments."""
    found = [optimizer]
    for one in found:  # which grows
        inner = (each for each in vars(one).values() if isinstance(each, torch.optim.Optimizer))
        found += [each for each in inner if all(each is not known for known in found)]
    return found


def _refuse_together(optimizer: torch.optim.Optimizer) -> None:
    if any(isinstance(one, torch.optim.LBFGS) for one in _nested(optimizer)):
        raise PolicyRefused(
            "P15",
            "LBFGS runs backward passes within its step, and steps all layers along one direction "
            "by what all of them have had of gradients",
            where="wrap_optimizer",
            hint="use an optimizer that steps each parameter by its own gradient, such as AdamW",
        )


def _let_see(scaler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Let a scaler see an optimizer without gradients, which it would take for an error."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if any(one.grad is not None for one in parameters):
        return
    parameters[0].grad = torch.zeros_like(parameters[0])
    with contextlib.suppress(RuntimeError):  # it has seen it already
        scaler.unscale_(optimizer)
    parameters[0].grad = None


def _unknown(why: str) -> PolicyRefused:
    return PolicyRefused(
        "P15",
        f"which passes the gradients of an optimizer are of is unknown: {why}",
        where="governance.step",
        hint="name it when it is made: context.governance.optimizer(optimizer)",
    )


def _stray() -> PolicyRefused:
    return PolicyRefused(
        "P15",
        "there are gradients, and no backward pass that was accounted for",
        where="step",
        hint="call context.backward(loss), not loss.backward(), and before each step",
    )
