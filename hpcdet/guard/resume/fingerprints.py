"""Fingerprints of weights, optimizers, random numbers and routing code: checks 16, 17, 20, 22.

They are measured when a checkpoint is made, spread over the ranks, and again when it has been put
back. They are in the manifest's meta, since their last digits depend on the machine.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from blake3 import blake3

from hpcdet.guard.guard import Guard
from hpcdet.guard.resume.closed_layers import Models
from hpcdet.guard.resume.resume_verdicts import NO_OVERRIDES, Check, Overrides, State, broken
from hpcdet.policy import measures
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import MIX, Entropy

Gather = Callable[[Any], Sequence[Any]]
"""Every rank's value, on every rank."""

TOLERANCE = 1e-4
"""By which the entropy of the same weights may differ between machines."""
_SHARE = 0.01
"""Of the time since the last measurement that one may take in any case."""
Measured = Literal["always", "in haste", "if cheap"]
"""Which checkpoints are measured: one that is kept, or that training waits for; the last one before
an allocation ends; one to go on from after a crash."""
_PATIENCE_S: dict[Measured, float] = {"always": math.inf, "in haste": 1.0, "if cheap": 0.05}
"""A measurement that takes no longer is made."""


UNMEASURED = "it was not measured: a measurement would have taken over 1 % of the time until then"
"""Why a checkpoint that was only made to go on from after a crash has no fingerprints."""


class Fingerprints:
    """Makes and compares the fingerprints of a trial; all ranks call together.

    Args:
        rank, world: this rank among all.
    """

    def __init__(self, guard: Guard, rank: int, world: int, gather: Gather) -> None:
        self._guard, self._rank, self._world, self._gather = guard, rank, world, gather
        self._measured_at, self._took = -math.inf, 0.0

    def take(
        self,
        parameters: Models,
        optimizers: Sequence[State],
        generators: Any,
        *,
        when: Measured = "if cheap",
        state: Any = None,
    ) -> State:
        """Fingerprints for the meta of a checkpoint, of whose account all ranks are sure.

        They are left out where the last ones took longer than the patience, and than a hundredth
        of the time since: how long is counted in time of this thread's processor, which a machine
        that others keep busy does not stretch.

        Args:
            parameters: of the models, by name.
            optimizers: their states by name of parameter.
            generators: states of this rank's random numbers; None: each step begins its own.
            when: what patience there is; the same on all ranks.
            state: of governance, as this rank would save it.

        Raises:
            GovernanceBroken: G107: ranks would save different ones; raised on all of them.
        """
        found: State = {"software": {"router": code_digest()}}
        begin, since = time.thread_time(), time.monotonic() - self._measured_at
        due = self._took <= max(_PATIENCE_S[when], _SHARE * since)
        everyone = self._gather([due, digest(state)])
        other = next((rank for rank, one in enumerate(everyone) if one[1] != everyone[0][1]), None)
        if other is not None:
            what = f"rank {other} is about to save another governance state than rank 0"
            raise broken("G107", what, hint="look for code that changes it, or counts, on one rank")
        if not everyone[0][0]:
            return found
        if self._guard.policy.entropy.spectral:
            found["spectral"] = self.spectral(parameters)
        found["optimizer"] = self._optimizer(optimizers)
        found["options"] = [_options(one) for one in optimizers]
        found["generators"] = self._generators(generators)
        self._measured_at, self._took = time.monotonic(), time.thread_time() - begin
        return found

    def compare(
        self,
        saved: Mapping[str, Any],
        parameters: Models,
        optimizers: Sequence[State],
        generators: Any,
        overrides: Overrides = NO_OVERRIDES,
        *,
        inherited: bool,
    ) -> list[Check]:
        """Compare what was put back with the fingerprints of its checkpoint.

        Raises:
            GovernanceBroken: G116, G120; or G117, where the policy says `hold`.
        """
        checks = self._compare_spectra(saved.get("spectral"), parameters, overrides)
        if inherited:
            checks.append(Check(20, "G120", "unknown", "options of optimizers are the heir's own"))
        else:
            try:
                checks.append(self._compare_states(saved, optimizers, generators))
            except GovernanceBroken as error:
                checks.append(overrides.settle(20, error))
        before = saved.get("software", {}).get("router", "")
        other = f"it was {before[:19] or 'not recorded'}, is {code_digest()[:19]}"
        return [*checks, overrides.warn(22, "G122", "" if before == code_digest() else other)]

    # -- weights -----------------------------------------------------------------------------

    def spectral(self, parameters: Models) -> State:
        """Spectral entropies of weights with two axes or more, in [0, 1], and layers' means.

        ``parameters``: by name ``[value, estimator, dtype]``; a value is null where it is not
        defined. ``layers``: by layer of the policy, weighted by numbers. ``outside``: layers that
        lie out of their band.
        """
        rules = self._guard.policy.entropy
        mine: dict[str, Any] = {}
        places = list(_weights(self._guard, parameters))
        owners = _dealt([parameters[name].numel() for name, _ in places], self._world)
        for (name, _), owner in zip(places, owners, strict=True):
            live: Any = parameters[name]
            whole = live.full_tensor() if hasattr(live, "full_tensor") else live
            if owner == self._rank:
                mine[name] = [*_entropy(whole, rules), str(whole.dtype).removeprefix("torch.")]
        found = {name: one for of_rank in self._gather(mine) for name, one in of_rank.items()}
        layers = _means(places, found, parameters)
        return {
            "settings": [rules.max_side, rules.probes, rules.seed],
            "parameters": dict(sorted(found.items())),
            "layers": layers,
            "outside": [name for name in layers if not _inside(rules, name, layers[name])],
        }

    def _compare_spectra(
        self, saved: State | None, parameters: Models, overrides: Overrides
    ) -> list[Check]:
        rules = self._guard.policy.entropy
        if saved is None or not rules.spectral:
            detail = "spectral entropies are not measured"
            if rules.spectral:
                detail = UNMEASURED
            return [Check(number, f"G{number + 100}", "unknown", detail) for number in (16, 17)]
        now = self.spectral(parameters)
        if list(saved.get("settings", ())) != now["settings"]:
            detail = "the policy asks for another estimator now"
            return [Check(16, "G116", "unknown", detail), self._banded(now, overrides)]
        for name in sorted({*saved.get("parameters", ()), *now["parameters"]}):
            before, after = (_value(one, name) for one in (saved, now))
            if before is not after and not _near(before, after):
                wrong = broken(
                    "G116",
                    f"the spectral entropy of {name} is {after}, and was {before} when saved",
                    hint="the weights have changed since: go on from another checkpoint",
                )
                return [overrides.settle(16, wrong), self._banded(now, overrides)]
        detail = f"{len(now['parameters'])} weights"
        return [Check(16, "G116", "passed", detail), self._banded(now, overrides)]

    def _banded(self, now: State, overrides: Overrides) -> Check:
        """Whether layers lie in the bands of the reference (G117)."""
        rules = self._guard.policy.entropy
        if not rules.reference:
            return Check(17, "G117", "unknown", "the policy names no reference")
        outside = [
            f"{name} is {now['layers'][name]:.4f}, expected {low:.4f} to {high:.4f}"
            for name in now["outside"]
            for low, high in [_band(rules, name)]
        ]
        if outside and rules.on_violation == "hold":
            wrong = broken(
                "G117",
                f"the spectral entropy of a layer lies outside of its band: {outside[0]}",
                hint="the recipe is not that of the reference; to go on all the same, change "
                "entropy.spectral.on_violation to warn",
            )
            return overrides.settle(17, wrong)
        return overrides.warn(17, "G117", "; ".join(outside))

    # -- optimizers and random numbers -------------------------------------------------------

    def _optimizer(self, states: Sequence[State]) -> str | None:
        """Digest of the state of all optimizers; None where ranks have divided it."""
        leaves = [
            (f"{number}.{name}.{key}", value)
            for number, one in enumerate(states)
            for name, slots in sorted(one["state"].items())
            for key, value in sorted(slots.items())
        ]
        if any(hasattr(value, "full_tensor") for _, value in leaves):
            return None
        sizes = [value.numel() if isinstance(value, torch.Tensor) else 1 for _, value in leaves]
        owners = _dealt(sizes, self._world)
        pairs = zip(leaves, owners, strict=True)
        mine = {name: digest(value) for (name, value), owner in pairs if owner == self._rank}
        everyone = {name: one for of_rank in self._gather(mine) for name, one in of_rank.items()}
        return digest(sorted(everyone.items()))

    def _generators(self, states: Any) -> list[str] | None:
        """Digests of random numbers by rank; None where each step begins its own."""
        found = list(self._gather(None if states is None else digest(states)))
        return None if None in found else found

    def _compare_states(
        self, saved: Mapping[str, Any], optimizers: Sequence[State], generators: Any
    ) -> Check:
        if "options" in saved:
            _same_options(saved["options"], [_options(one) for one in optimizers])
        before, now = saved.get("optimizer"), self._optimizer(optimizers)
        known, live = saved.get("generators") or [], self._generators(generators) or []
        if before is not None and now is not None and before != now:
            raise broken(
                "G120",
                "the state of the optimizers is not what was saved",
                hint="it has changed since, or the optimizer takes it back otherwise: go on from "
                "another checkpoint",
            )
        compared = len(known) == len(live) > 0
        for rank, pair in enumerate(zip(known, live, strict=True) if compared else ()):
            if pair[0] != pair[1]:
                raise broken("G120", f"the random numbers of rank {rank} are not what was saved")
        if before is None or now is None:
            why = UNMEASURED if "optimizer" not in saved else "ranks have divided the state"
            return Check(20, "G120", "unknown", why)
        return Check(20, "G120", "passed", "" if compared else "random numbers are begun anew")


def _options(optimizer: State) -> dict[str, str]:
    """Digests of an optimizer's options, learning rates among them, over its groups."""
    groups = optimizer["param_groups"]
    names = sorted({name for group in groups for name in group})
    return {name: digest([group.get(name) for group in groups]) for name in names}


def _same_options(saved: Sequence[Mapping[str, str]], now: Sequence[Mapping[str, str]]) -> None:
    """Options that were saved are what they were; other versions of torch may have more."""
    if len(saved) != len(now):
        raise broken("G120", f"it is of {len(saved)} optimizers, and there are {len(now)}")
    for number, (before, after) in enumerate(zip(saved, now, strict=True)):
        for name in before:
            if before[name] != after.get(name):
                raise broken(
                    "G120",
                    f"the option {name} of optimizer {number} is not what was saved",
                    hint="it has changed since, or a callback changes it as it is loaded: go on "
                    "from another checkpoint",
                )


def digest(value: Any) -> str:
    """BLAKE3 of plain data with tensors and arrays: their types, shapes and bits."""
    found = blake3()
    _feed(found, value)
    return str(found.hexdigest())


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        found.update(f"tensor {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.flatten().view(torch.uint8).numpy() if value.numel() else b"")
    elif isinstance(value, np.ndarray):
        found.update(f"array {value.dtype} {value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        found.update(f"map {len(value)}".encode())
        for name, one in sorted(value.items(), key=lambda pair: str(pair[0])):
            _feed(found, str(name))
            _feed(found, one)
    elif isinstance(value, list | tuple):
        found.update(f"list {len(value)}".encode())
        for one in value:
            _feed(found, one)
    else:
        found.update(f"{type(value).__name__} {value!r}".encode())


@cache
def code_digest() -> str:
    """Digest of the code that routes gradients and divides them, ``sha256:…``."""
    guard = Path(__file__).parent.parent
    found = hashlib.sha256()
    for path in sorted([*guard.glob("routing/*.py"), *guard.glob("stepping/*.py")]):
        data = path.read_bytes()
        found.update(f"{path.relative_to(guard).as_posix()} {len(data)}\n".encode() + data)
    return f"sha256:{found.hexdigest()}"


def _weights(guard: Guard, parameters: Models) -> Iterator[tuple[str, str]]:
    """Yield each weight that is a matrix or more, and its layer."""
    for number, found in enumerate(guard.models.maps):
        for one in found.parameters:
            name = f"{number}.{one.name}"
            if len(one.shape) > 1 and name in parameters and parameters[name].numel():
                yield name, found.layers[one.layer]


def _dealt(sizes: Sequence[int], world: int) -> list[int]:
    """The rank of each of some things, balanced by size; the same on all ranks."""
    loads, owners = [0] * world, [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        owners[place] = loads.index(min(loads))
        loads[owners[place]] += sizes[place]
    return owners


def _entropy(weight: torch.Tensor, rules: Entropy) -> tuple[float | None, str]:
    """Normalised spectral entropy of a weight, of singular values or of their squares."""
    values = weight.detach().to(torch.float64).cpu().numpy()
    try:
        found = measures.spectrum(values, rules.max_side, rules.probes, rules.seed)
    except ValueError:
        return None, "not finite"
    if found.estimator == "svd":
        return (None if math.isnan(found.entropy) else found.entropy), "svd"
    rank = min(found.sides)
    known = rank > 1 and not math.isnan(found.squares)
    return (math.log(found.squares) / math.log(rank) if known else None), "probes"


def _means(
    places: Sequence[tuple[str, str]], found: Mapping[str, Any], parameters: Models
) -> dict[str, float | None]:
    """Mean entropy of each layer's weights, by the numbers that they have."""
    sums: dict[str, tuple[float, int]] = {}
    for name, layers in places:
        value = found[name][0]
        for layer in layers.split(MIX):
            total, count = sums.get(layer, (0.0, 0))
            if value is not None:
                size = parameters[name].numel()
                total, count = total + value * size, count + size
            sums[layer] = total, count
    return {name: total / count if count else None for name, (total, count) in sums.items()}


def _band(rules: Entropy, layer: str) -> tuple[float, float]:
    mean, deviation = rules.reference[layer]
    half = max(rules.sd_mult * deviation, rules.floor)
    return mean - half, mean + half


def _inside(rules: Entropy, layer: str, value: float | None) -> bool:
    if layer not in rules.reference or value is None:
        return True
    low, high = _band(rules, layer)
    return low <= value <= high


def _value(spectral: State, name: str) -> Any:
    found = spectral.get("parameters", {}).get(name)
    return found[0] if isinstance(found, list) and found else "absent"


def _near(before: Any, after: Any) -> bool:
    numbers = isinstance(before, float | int) and isinstance(after, float | int)
    return numbers and abs(before - after) <= TOLERANCE
