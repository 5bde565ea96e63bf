"""Where the time of one rank went, and what it used: recorded in a journal now and then.

Rank 0 tells it to the attempt's journal, every other rank to one of its own. A record is the sum
of some seconds, ten at first; the longer an attempt lasts the longer they get, so that a month
leaves a few thousand records (1.5 MB).
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hpcdet.errors import UsageError
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.train.telemetry.device_timer import DeviceTimes, corrected
from hpcdet.train.telemetry.phases import Phases, Within
from hpcdet.train.telemetry.resource_monitor import ResourceMonitor
from hpcdet.train.telemetry.tracker import Tracker
from hpcdet.units import Units

PERIOD_S = 10.0
_RECORDS = 360
"""Records before they get rarer; then so many for each further e-fold of the time."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MOST_NAMES = 24


class Profile:
    """One rank's. All methods cost next to nothing until a period is over.

    Args:
        tracker: where to tell it; None: nowhere, and nothing is sampled.
        told: of each record, beside its times.

    Attributes:
        phases: the time of this process; change the phase where it changes.
    """

    def __init__(
        self,
        tracker: Tracker | None,
        sampler: ResourceMonitor | None = None,
        device: DeviceTimes | None = None,
        clock: Callable[[], float] = time.perf_counter,
        **told: Any,
    ) -> None:
        self.phases = Phases(clock)
        self._watch: Callable[[str], None] | None = None
        self._tracker = tracker
        self._sampler = sampler
        self._device = device
        self._clock = clock
        self._told = told
        self._names: set[str] = set()
        self._begun = self._last = clock()
        self._due = float("inf")
        self._started = False
        self._steps = 0
        self._counted = 0
        self._records = 0
        self._slowest = 0.0

    @classmethod
    def of(
        cls,
        place: AttemptLocation,
        ranks: Ranks,
        tracker: Tracker,
        device: torch.device,
        *,
        wanted: bool = True,
    ) -> Profile:
        """The profile of one rank of an attempt.

        Args:
            tracker: rank 0's; the other ranks get one of their own.
        """
        if place.experiment is None or not wanted:
            return cls(None)
        from hpcdet.train.telemetry import probes

        own = tracker if ranks.chief else Tracker(place.attempt.profile(ranks.rank))
        cuda = device.type == "cuda"
        events = DeviceTimes(_event) if cuda else None
        sampler = ResourceMonitor(probes.of_rank(ranks, device))
        return cls(own, sampler, events, rank=ranks.rank, host=socket.gethostname())

    def begin(self) -> None:
        """This attempt begins."""
        if self._sampler is not None:
            self._sampler.start()

    def phase(self, name: str) -> Within:
        """A ``with`` block that belongs to a phase, which may be anybody's own.

        Raises:
            UsageError: a name that is no short word of small letters, or one too many.
        """
        if name not in self._names:
            self._names.add(name)
            if not _NAME.fullmatch(name) or len(self._names) > _MOST_NAMES:
                raise UsageError(
                    f"{name!r} cannot be a phase",
                    where="profiler.phase",
                    hint=f"small letters, digits and _, and at most {_MOST_NAMES} of them",
                )
        return self.phases.within(name)

    @contextlib.contextmanager
    def apart(self, phase: str) -> Iterator[None]:
        """A ``with`` block of a phase that is no step's, however slow the slowest may be."""
        begun = self._clock()
        with self.phases.within(phase):
            yield
        self._last += self._clock() - begun

    def count(self, samples: int) -> None:
        """So many samples more have been trained on, over all ranks."""
        self._counted += samples

    def watch(self, mark: Callable[[str], None] | None) -> None:
        """Call ``mark`` with each phase of a batch, and "" at its end, in place of device timing.

        None ends that.
        """
        self._watch = mark

    def begin_batch(self) -> None:
        """Begin the work of a step, for the timer of the accelerator."""
        if self._watch is not None:
            self.phases.mark = self._watch
        elif self._device is not None:
            self.phases.mark = self._device.begin()

    def end_batch(self) -> None:
        """The inverse of ``begin_batch``."""
        mark, self.phases.mark = self.phases.mark, None
        if mark is not None and mark is self._watch:
            mark("")
        elif mark is not None and self._device is not None:
            self._device.end()

    def step(self, units: Units) -> None:
        """A step lies behind. The first one, which compiles and fills caches, is left out."""
        now = self._clock()
        if not self._started:
            self._started = True
            self._begin_period(units, now)
            self._begun, self._due = now, now + PERIOD_S
            return
        self._steps += 1
        self._slowest = max(self._slowest, now - self._last)
        self._last = now
        if now >= self._due:
            self.tell(units)
            self._due = now + max(PERIOD_S, (now - self._begun) / _RECORDS)

    def tell(self, units: Units) -> None:
        """Record what is behind, and begin anew."""
        spent = self.phases.take()
        sampled, device = self._device.take() if self._device is not None else (0, {})
        samples = units.records - self._records or self._counted
        if self._tracker is not None and self._steps:
            spent = corrected(spent, self._steps, sampled, device)
            self._tracker.record(
                "profile",
                **self._told,
                batches=units.batches,
                seconds=round(sum(spent.values()), 4),
                steps=self._steps,
                samples=samples,
                slowest_s=round(self._slowest, 5),
                phases=_rounded(spent),
                by="device" if sampled else "host",
                use=self._sampler.take() if self._sampler is not None else {},
            )
        self._begin_period(units, self._clock())

    def close(self, units: Units | None) -> None:
        """End the attempt; what was not recorded yet is dropped if it ends by an error."""
        if self._sampler is not None:
            self._sampler.stop()
            if units is not None:
                self._sampler.look()
        if units is not None and self._started:
            self.tell(units)
        if self._tracker is not None and self._told.get("rank"):
            self._tracker.close()
        self._tracker = None

    def _begin_period(self, units: Units, now: float) -> None:
        self.phases.take()
        self._last = now
        self._steps, self._counted, self._slowest = 0, 0, 0.0
        self._records = units.records


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _rounded(spent: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 5) for name, seconds in spent.items() if seconds >= 5e-6}
