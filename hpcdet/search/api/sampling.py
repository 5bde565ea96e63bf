"""Where hyperparameters come from: the seam between scheduling rules and samplers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hpcdet.space.space import Space


class Observation(NamedTuple):
    """The result of one trial at one length.

    Attributes:
        length: of training, in the search's unit.
        loss: the metric, smaller being better whatever the config says; None for what is worst
            (missing, no number, not finite, failed).
        losses: of every objective, where there are several or constraints; else empty.
        excess: of every constraint; above 0 it is broken.
    """

    trial: int
    length: int
    loss: float | None
    losses: tuple[float, ...] = ()
    excess: tuple[float, ...] = ()

    @property
    def violation(self) -> float:
        return sum(one for one in self.excess if one > 0)


class View(Protocol):
    """The data that a sampler may read."""

    def params(self) -> Mapping[int, Mapping[str, Any]]:
        """Hyperparameters of every trial; empty unless the sampler ``learns``."""

    def observations(self, most: int | None = None) -> Iterator[Observation]:
        """Longest first, best first among those of one length.

        Args:
            most: of each length the caller looks only at so many of the best, at those of so many
                trials that were made last, and at those of open trials; whether there are others
                does not matter to it. None: it looks at all of them.
        """

    def open(self) -> list[int]:
        """Trials that have a place now: their next observation is still to come."""


class Sampler(Protocol):
    """Suggests hyperparameters: a pure function of its arguments and the experiment's seed."""

    @property
    def name(self) -> str: ...

    @property
    def learns(self) -> bool:
        """True if it learns from the hyperparameters of former trials."""

    @property
    def constant(self) -> bool:
        """Every suggestion is the same."""

    def suggest(self, view: View, number: int) -> dict[str, Any]:
        """Hyperparameters of the trial with this number.

        Raises:
            SpaceError: there are none that the config allows.
        """


@dataclass(frozen=True)
class Independent:
    """Draws each trial by itself, whatever others have shown."""

    space: Space
    seed: int
    name: str = "random"
    learns: bool = False

    @property
    def constant(self) -> bool:
        return self.space.constant

    def suggest(self, view: View, number: int) -> dict[str, Any]:
        """Raises as ``Space.sample``."""
        return self.space.sample(self.seed, number)


@dataclass(frozen=True)
class Blind:
    """The view of a search that compares nothing."""

    def params(self) -> Mapping[int, Mapping[str, Any]]:
        return {}

    def observations(self, most: int | None = None) -> Iterator[Observation]:
        return iter(())

    def open(self) -> list[int]:
        return []


@dataclass(frozen=True)
class Around:
    """The base of samplers that wrap another one."""

    sampler: Sampler

    @property
    def name(self) -> str:
        return self.sampler.name

    @property
    def constant(self) -> bool:
        return self.sampler.constant


@dataclass(frozen=True)
class Recorded(Around):
    """A sampler that learns, while a search is decided again by its records.

    What was suggested then stands, whatever the model says today: another version of a library
    may say something else, and asking it for each trial would take minutes.

    Attributes:
        known: hyperparameters by the trial's number, from the records; used up as they are asked.
    """

    known: dict[int, Mapping[str, Any]]
    learns: bool = True

    def suggest(self, view: View, number: int) -> dict[str, Any]:
        """Raises as the sampler does."""
        known = self.known.pop(number, None)
        return dict(known) if known is not None else self.sampler.suggest(view, number)
