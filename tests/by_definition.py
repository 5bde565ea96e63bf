"""What a search by halving decides, written down from its definition and nothing else.

A second implementation, for comparison: it keeps what was told and looks at all of it at each
question. The definition of the rules is docs/guides/search-rungs.md; of ``stopping`` that is the
stopping variant of ASHA as in Determined 0.38, of ``promotion`` Algorithm 2 of Li et al., "A
System for Massively Parallel Hyperparameter Tuning" (MLSys 2020). Nothing here is imported from
the search.

A trial's *result* at a rung is the first report that it was heard with at or after that rung. Its
*cut* is how many of those with a result go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

State = Literal["open", "paused", "leaving", "out"]
Word = tuple[str, int]
"""What is wanted of a trial: ``("stop", 2)``; a create has its bracket besides."""

GOOD = ("target", "stopped", "user_exit")
NO_TRACE = ("invalid_hp", "violated")


@dataclass
class Ladder:
    """A bracket: its rungs, how many trials begin, and its part of the places."""

    rungs: tuple[int, ...]
    trials: int
    places: int


def rungs(top: int, eta: Fraction, count: int) -> tuple[int, ...]:
    """``top / eta**k`` rounded down, at least 1, ascending, each once."""
    return tuple(sorted({max(int(top / eta**k), 1) for k in range(count)}))


def standard(top: int, eta: Fraction, most: int, trials: int, places: int) -> list[Ladder]:
    """The brackets of adaptive ASHA in its standard mode, for at least one place.

    Equal ladders are one; the last ones go where there are more brackets than trials for them.
    """

    def fits(number: int) -> int:
        return max(k for k in range(64) if eta**k <= number) + 1

    deepest = min(most, fits(top), fits(trials))
    ladders: list[tuple[int, ...]] = []
    for count in range(deepest, (deepest - 1) // 2, -1):
        if rungs(top, eta, count) not in ladders:
            ladders.append(rungs(top, eta, count))
    while True:
        weights = [eta ** (len(one) - 1) / len(one) for one in ladders]
        parts = [max(int(weight / sum(weights) * trials), 1) for weight in weights]
        if sum(parts) <= trials or len(parts) == 1:
            break
        ladders.pop()
    parts[0] += trials - sum(parts)
    places = max(places, len(ladders))
    each = [places // len(ladders) + (k < places % len(ladders)) for k in range(len(ladders))]
    return [Ladder(*one) for one in zip(ladders, parts, each, strict=True)]


@dataclass
class Trial:
    """What is known of a trial.

    Attributes:
        heard: its reports, in the order in which they were told: length, loss; None is the worst.
        results: of each rung that it was compared at, lowest first; None: it failed on the way.
        passed: rungs that it went on from.
        failed_at: the rung on the way to which it failed.
        trained: it has ended while it was paused, having trained all the way.
        turned: a policy ended it, so that nobody takes its turn.
    """

    number: int
    bracket: int
    state: State = "open"
    heard: list[tuple[float, float | None]] = field(default_factory=list)
    results: list[float | None] = field(default_factory=list)
    passed: int = 0
    failed_at: int | None = None
    trained: bool = False
    turned: bool = False
    refused: bool = False
    good: bool = False
    stopped: bool = False


@dataclass
class Search:
    """A search, told what happens; ``report`` and ``end`` return what it wants then.

    Attributes:
        promotion_share: of ``hybrid``; None: no limit.
        timed: lengths are a metric, so that a trial at the top has to be told to stop.
        places: trials with a place at most.
    """

    rule: str
    eta: Fraction
    brackets: Sequence[Ladder]
    places: int
    promotion_share: float | None = None
    timed: bool = False
    trials: list[Trial] = field(default_factory=list)
    shown: bool = False
    over: bool = False

    # -- what is told ------------------------------------------------------------------------

    def start(self) -> list[Word]:
        return self._decide()

    def report(
        self, number: int, length: float, loss: float | None, has: bool = True
    ) -> list[Word]:
        """``has``: the metric is in the report; ``loss``: None where it is no finite number."""
        if self.over or not 1 <= number <= len(self.trials):
            return []
        trial = self.trials[number - 1]
        listens = trial.state in ("open", "paused")
        self.shown = self.shown or (has and listens)
        if listens and self.shown:
            trial.heard.append((length, loss))
        return self._decide()

    def end(self, number: int, reason: str) -> list[Word]:
        if self.over or not 1 <= number <= len(self.trials):
            return []
        trial = self.trials[number - 1]
        if trial.state == "out" or trial.trained:
            return self._decide()
        if trial.state == "paused" and reason == "target":
            trial.trained = True
            return self._decide()
        if reason in NO_TRACE:
            trial.results, trial.refused = [], reason == "invalid_hp"
        elif trial.state == "open" and reason not in GOOD:
            trial.failed_at = len(trial.results)
        trial.turned = reason == "stopped" and trial.state in ("open", "paused")
        trial.good = reason in GOOD
        trial.state = "out"
        return self._decide()

    # -- what is decided ---------------------------------------------------------------------

    def _decide(self) -> list[Word]:
        """Judge who has come to a rung, give free places away, and say what has become of whom."""
        before = {trial.number: trial.state for trial in self.trials}
        created: list[Word] = []
        for trial in self.trials:
            self._climb(trial)
        most = self.places or sum(one.places for one in self.brackets)
        while self._count("open") < most and self._give_place(created):
            pass
        words: list[Word] = []
        for trial in self.trials:
            was, now = before.get(trial.number, trial.state), trial.state
            if now == "leaving" and was in ("open", "paused"):
                if trial.stopped or self.timed:
                    words.append(("stop", trial.number))
                elif was == "paused":
                    words.append(("continue", trial.number))
            elif now == "paused" and was == "open":
                words.append(("pause", trial.number))
            elif now == "open" and was == "paused":
                words.append(("continue", trial.number))
        if not self._count("open") and not self._count("leaving"):
            self.over = True
            some = any(t.good or t.state == "paused" for t in self.trials)
            words.append(("shutdown", 0) if some else ("shutdown failed", 0))
        return words + created

    def _climb(self, trial: Trial) -> None:
        """An open trial is judged at each rung that it has come to, until one holds it."""
        while trial.state == "open":
            ladder, rung = self.brackets[trial.bracket].rungs, len(trial.results)
            found = [loss for length, loss in trial.heard if length >= ladder[rung]]
            if not found:
                return
            trial.results.append(found[0])
            if rung == len(ladder) - 1:
                trial.state = "leaving"
                return
            rank, cut = self._ranking(trial.bracket, rung).index(trial), self._cut(trial, rung)
            if self.rule == "stopping" and rank >= max(cut, 1):
                trial.state, trial.stopped = "leaving", True
            elif self.rule != "stopping" and (self.rule == "promotion" or rank >= cut):
                trial.state = "paused"
            else:
                trial.passed = rung + 1

    def _give_place(self, created: list[Word]) -> bool:
        """A free place takes a promoted trial or a new one: whether there was any."""

        def turn(number: int) -> tuple[bool, Fraction, int]:
            ladder, mine = self.brackets[number], self._of(number)
            has_part = sum(trial.state == "open" for trial in mine) >= ladder.places
            return has_part, Fraction(len(mine), ladder.trials), number

        for number in sorted(range(len(self.brackets)), key=turn):
            made = [trial for trial in self._of(number) if not trial.refused]
            new = len(made) < self.brackets[number].trials
            chosen = self._promoted(number, new)
            if chosen is None and new:
                self.trials.append(Trial(len(self.trials) + 1, number))
                created.append((f"create {number}", len(self.trials)))
                return True
            chosen = chosen or self._last(number)
            if chosen is not None:
                self._promote(chosen)
                return True
        return False

    def _promoted(self, number: int, new: bool) -> Trial | None:
        """The best paused trial of the highest rung where it ranks so that it may go on.

        While ``new`` trials are to be made cohorts are counted whole, and hybrid has its share.
        """
        for rung in reversed(range(len(self.brackets[number].rungs) - 1)):
            ranking = self._ranking(number, rung)
            cut = self._whole(number, rung, len(ranking)) if new else self._share(len(ranking))
            limit = self.promotion_share if self.rule == "hybrid" and new else None
            if limit is not None and self._gone_on(number, rung) >= cut * limit:
                continue
            for trial in ranking[:cut]:
                if self._waits(trial, rung):
                    return trial
        return None

    def _last(self, number: int) -> Trial | None:
        """The best of a rung that nobody is on the way to and nobody has gone on from."""
        for rung in range(len(self.brackets[number].rungs) - 1):
            if any(t.state == "open" and len(t.results) == rung for t in self._of(number)):
                return None
            waiting = [t for t in self._ranking(number, rung) if self._waits(t, rung)]
            if waiting and not self._gone_on(number, rung):
                return waiting[0]
        return None

    def _promote(self, trial: Trial) -> None:
        trial.state, trial.passed = "open", len(trial.results)
        self._climb(trial)
        if trial.trained and trial.state != "paused":  # type: ignore[comparison-overlap] # it needs no place for what it has shown
            trial.state, trial.good = "out", True

    # -- what is known -----------------------------------------------------------------------

    def _count(self, state: State) -> int:
        return sum(trial.state == state for trial in self.trials)

    def _of(self, bracket: int) -> list[Trial]:
        return [trial for trial in self.trials if trial.bracket == bracket]

    def _waits(self, trial: Trial, rung: int) -> bool:
        return trial.state == "paused" and len(trial.results) == rung + 1

    def _ranking(self, bracket: int, rung: int) -> list[Trial]:
        """All that have a result at a rung, or failed on the way to it; best first."""

        def order(trial: Trial) -> tuple[bool, float, int]:
            loss = trial.results[rung] if len(trial.results) > rung else None
            return loss is None, loss or 0.0, trial.number

        there = [t for t in self._of(bracket) if len(t.results) > rung or t.failed_at == rung]
        return sorted(there, key=order)

    def _gone_on(self, bracket: int, rung: int) -> int:
        """How many went on from a rung, less those that ended before the top by themselves."""
        ladder = self.brackets[bracket].rungs

        def counts(trial: Trial) -> bool:
            full = len(trial.results) == len(ladder) and trial.good
            return trial.passed > rung and (trial.state != "out" or full or trial.turned)

        return sum(counts(trial) for trial in self._of(bracket))

    def _share(self, n: int) -> int:
        return int(n / self.eta)

    def _whole(self, bracket: int, rung: int, n: int) -> int:
        if self.rule != "cohorts":
            return self._share(n)
        ladder = self.brackets[bracket]
        size = int(self.eta ** (len(ladder.rungs) - 1 - rung))
        size = min(size, ladder.trials)
        return self._share(n // size * size)

    def _cut(self, trial: Trial, rung: int) -> int:
        n = len(self._ranking(trial.bracket, rung))
        return self._whole(trial.bracket, rung, n)
