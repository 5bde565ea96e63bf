"""Asynchronous successive halving over any number of brackets, by any of its rules.

``Halving`` keeps the books: which trial is on which rung of which bracket, how it ranks there, and
who gets a place that becomes free. What becomes of a trial at a rung is its rule's to say
(``rung_rules``). A decision takes the logarithm of the number of
trials, and the moving of a list.

A trial is made with the whole training as its length, so that one that goes on needs no word from
anybody. At a rung its place may be taken from it; while that is on its way it may train on and
report more. Of a paused trial such reports are kept for the day on which it is promoted. All others
that come late, twice or after an end change nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpcdet.goals import EVER, Goals, Objective
from hpcdet.rungs import Bracket
from hpcdet.search.api import ranking
from hpcdet.search.api.events import (
    Action,
    Ask,
    Continue,
    Create,
    Event,
    Limits,
    Pause,
    Report,
    SegmentEnd,
    Shutdown,
    Start,
    Stop,
)
from hpcdet.search.api.sampling import Sampler
from hpcdet.search.halving import bracket_state as book
from hpcdet.search.halving import promotion, resize, sanity
from hpcdet.search.halving.bracket_state import (
    DONE,
    ENDED,
    FULL,
    LEAVING,
    OPEN,
    PAUSED,
    STOPPED,
    Books,
    HalvingState,
)
from hpcdet.search.halving.promotion import Promotion
from hpcdet.search.halving.rung_rules import Cut, Rule
from hpcdet.space.errors import SpaceError
from hpcdet.space.space import trial_seed
from hpcdet.units import Length

Above = Literal["nothing", "rung", "unknown"]

NEWEST = 6
"""``searcher.rule_version`` of new experiments."""

_GOOD = ("target", "stopped", "user_exit")


@dataclass(frozen=True)
class Halving:
    """A search by halving.

    Attributes:
        until: length of the whole training; None where the code decides (``time_metric``).
        max_concurrent: places; 0: as many as the brackets have together.
        time_metric: the metric that says how far a trial is; "": the length of the report does.
        promotion_share: while new trials are to be made, a paused one is promoted only if fewer
            than this share of those that may go on from its rung have; None: in any case.
        goals: constraints and several objectives, where there are any; None: the metric alone.
        version: ``searcher.rule_version``. By 4 a trial that was stopped at the last rung but one
            goes on after all where it has trained to its end before it heard; one that is promoted
            and had ended before its next rung counts as one that went on; and whom cohorts and
            ``promotion_share`` let go on comes first even when no new trial is to be made. By 5
            no more than their share of a model's trials go on (``Cut.paced``).
    """

    name: str
    rule: Rule
    brackets: Sequence[Bracket]
    divisor: float
    sampler: Sampler
    seed: int
    until: Length | None
    max_concurrent: int
    metric: str
    smaller_is_better: bool = True
    time_metric: str = ""
    promotion_share: float | None = None
    goals: Goals | None = None
    version: int = NEWEST

    def initial(self) -> HalvingState:
        brackets = [Books.opened(bracket) for bracket in self.brackets]
        return HalvingState(brackets, self.max_concurrent, self.until)

    def on_event(self, state: HalvingState, event: Event) -> tuple[HalvingState, list[Action]]:
        """Changes ``state``."""
        if state.over and not isinstance(event, Limits):
            return state, []
        actions: list[Action] = []
        known = range(1, len(state.trials.status) + 1)
        match event:
            case Start():
                pass
            case Report(trial=trial) if trial in known:
                self._hear(state, event, actions)
            case SegmentEnd(trial=trial) if trial in known:
                self._end(state, event, actions)
            case Limits():
                heighten = None if self.time_metric else functools.partial(self._heighten, state)
                actions += resize.take(state, event, self.brackets, self.divisor, heighten)
            case _:
                return state, []
        self._fill(state, actions)
        return state, promotion.without_detours(actions)

    # -- reports -----------------------------------------------------------------------------

    def _hear(self, state: HalvingState, report: Report, actions: list[Action]) -> None:
        trial, status = report.trial, state.trials.status[report.trial - 1]
        if status not in (OPEN, PAUSED):
            return
        length = self._length(state, report)
        found = self._order.worth(report.metrics, report.length.value)
        shown = sanity.shown(report, self.metric, self.goals) if length is not None else "nothing"
        if shown != "nothing":
            state.in_a_row, state.doubts.seen = 0, True
        unheard = not state.doubts.seen
        mute = state.doubts.mute
        if shown == "numbers":
            if not mute.settled:
                mute.settle()
        elif length is None or not mute.settled:
            rung = state.trials.rung[trial - 1]
            if length is None or state.books(trial).has_reached(rung, length):
                actions += self._doubt_metric(state, trial, report.metrics)
        if length is None or unheard:
            return
        if status == PAUSED:
            state.trials.late.setdefault(str(trial), []).append([length, found])
        else:
            self._climb(state, trial, length, found, actions)

    def _length(self, state: HalvingState, report: Report) -> float | None:
        """Return a trial's length in the unit of the rungs; None if unknown."""
        if self.time_metric:
            return ranking.loss(report.metrics, self.time_metric, True)
        unit = state.until.unit if state.until is not None else ""
        return report.length.value if report.length.unit == unit else None

    def _climb(
        self, state: HalvingState, trial: int, length: float, found: Any, actions: list[Action]
    ) -> None:
        """Rank an open trial at every rung that it has reached, until one holds it."""
        books, rung = state.books(trial), state.trials.rung[trial - 1]
        rungs = books.rungs
        while length >= rungs[rung]:
            scores, waiting = books.scores[rung], books.waiting[rung]
            new = self._order.entry(found, trial)
            rank = self._order.insert(scores, waiting, new)
            books.next[rung] -= 1
            state.trials.rung[trial - 1] = rung + 1
            above = "rung" if rung + 1 < len(rungs) else self._above(state, books, trial)
            if above == "nothing":
                state.doubts.short.settle()
                state.leave(trial)
                if state.until is None:
                    actions.append(
                        Stop(trial, f"{state.place(trial, self._unit)}: trained in full")
                    )
                return
            cut = self._cut(books, rung)
            verdict = self.rule.verdict(rank, cut) if above == "rung" else "pause"
            if verdict == "on":
                books.on[rung] += 1
                books.next[rung + 1] += 1
                rung += 1
                continue
            why = f"{state.place(trial, self._unit)}: rank {rank + 1} of {len(scores)}"
            if verdict == "stop":
                state.leave(trial, STOPPED if self.version > 4 else LEAVING)
                actions.append(Stop(trial, f"{why}, the best {max(cut, 1)} go on"))
                return
            ranking.insert(waiting, new)
            state.trials.status[trial - 1] = PAUSED
            state.open -= 1
            if length > rungs[rung]:
                state.trials.late[str(trial)] = [[length, found]]
            some = above == "rung" and cut
            go_on = f"the best {cut} go on" if some else "nobody goes on yet"
            actions.append(Pause(trial, f"{why}, {go_on}"))
            return

    def _above(self, state: HalvingState, books: Books, trial: int) -> Above:
        """Return what lies above the highest rung, which a trial has just reported."""
        return "nothing"

    def _doubt_metric(
        self, state: HalvingState, trial: int, told: Mapping[str, Any] | None = None
    ) -> list[Ask]:
        """A trial has come to a rung, or ended, without what the search needs."""
        trials = sum(books.trials for books in state.brackets)
        first = min(books.rungs[0] for books in state.brackets)
        time = f" with {self.time_metric!r}" if self.time_metric else ""
        where = f"{time} from length {first} on"
        return state.doubts.without_metric(trial, trials, self._wanted, where, told)

    def _doubt_length(self, state: HalvingState, trial: int) -> list[Ask]:
        """A trial has ended by itself before its next rung."""
        rungs, rung = state.books(trial).rungs, state.trials.rung[trial - 1]
        return state.doubts.ended_early(trial, f"{rungs[rung]} {self._unit}", rungs[-1])

    # -- ends --------------------------------------------------------------------------------

    def _end(self, state: HalvingState, end: SegmentEnd, actions: list[Action]) -> None:
        trial, good = end.trial, end.reason in _GOOD
        books, rung = state.books(trial), state.trials.rung[trial - 1]
        status = state.trials.status[trial - 1]
        if status in (ENDED, DONE, FULL):
            return
        refused = end.reason == "invalid_hp"
        traceless = refused or end.reason == "violated"
        state.in_a_row = state.in_a_row + 1 if refused else 0
        if status == PAUSED and end.reason == "target":
            state.trials.status[trial - 1] = FULL
            return
        if status == OPEN:
            state.open -= 1
            books.next[rung] -= 1
            if not good and not traceless:
                worst = self._order.entry(None, trial)
                self._order.insert(books.scores[rung], books.waiting[rung], worst)
        elif status in (LEAVING, STOPPED):
            state.leaving -= 1
            if status == LEAVING and end.reason == "target" and rung == len(books.rungs) - 1:
                resize.rest(state, books, rung - 1, trial)
                return
        else:
            ranking.remove(books.waiting[rung - 1], trial)
            state.trials.late.pop(str(trial), None)
        books.invalid += refused
        for below in range(rung if traceless else 0):
            self._order.remove(books.scores[below], books.waiting[below], trial)
        # an open or paused trial is stopped by a policy only: then nobody takes its turn
        by_policy = end.reason == "stopped" and status not in (LEAVING, STOPPED)
        if not by_policy and not (good and rung == len(books.rungs)):
            for below in range(rung if status == OPEN else rung - 1):
                books.on[below] -= 1
        self._close(state, trial, good)
        if good and status == OPEN and not by_policy:
            mute = state.trials.rung[trial - 1] == 0 and not state.doubts.mute.settled
            actions += (self._doubt_metric if mute else self._doubt_length)(state, trial)

    def _close(self, state: HalvingState, trial: int, good: bool) -> None:
        top = state.trials.rung[trial - 1] == len(state.books(trial).rungs)
        state.trials.status[trial - 1] = DONE if good and top else ENDED
        state.good += good

    # -- places ------------------------------------------------------------------------------

    def _fill(self, state: HalvingState, actions: list[Action]) -> None:
        """Give every free place to a trial; with nothing left to wait for the search is over."""
        brackets = state.brackets
        most = state.concurrent or sum(books.concurrent for books in brackets)
        hopeless = promotion.hopeless(state.in_a_row, self.sampler)
        while state.open < most:
            try:
                turns = book.in_turn(brackets)
                if any(self._advance(state, n, bool(hopeless), actions) for n, _ in turns):
                    continue
            except SpaceError as error:
                hopeless = error.what
                continue
            if state.open or state.leaving or not self._reopen(state):
                break
        if state.open or state.leaving:
            return
        state.over = True
        paused = any(any(books.waiting) for books in brackets)
        failed = not (state.good or paused)
        why = hopeless or ("no trial succeeded" if failed else "")
        actions.append(Shutdown(failed, why))

    def _reopen(self, state: HalvingState) -> bool:
        """Nothing is left to do: whether this has changed now."""
        return False

    def _advance(
        self, state: HalvingState, number: int, hopeless: bool, actions: list[Action]
    ) -> bool:
        """The next step of a bracket: promote, else create, else promote the last ones.

        Returns whether there was any.
        """
        books = state.brackets[number]
        order = self._order
        new = not hopeless and books.is_open
        due = self._cut.due if new or self.version < 5 else self._cut.share
        found = promotion.promotable(books, due, order)
        if found is None and new:
            self._create(state, number, actions)
            return True
        found = found or promotion.promotable(books, self._cut.share, order)
        found = found or promotion.last(books, order)
        if found:
            self._promote(state, books, found, actions)
        return found is not None

    def _create(self, state: HalvingState, number: int, actions: list[Action]) -> None:
        trial = len(state.trials.status) + 1
        params = self.sampler.suggest(book.StateView(state), trial)
        if self.sampler.learns:
            state.trials.params.append(params)
        state.trials.bracket.append(number)
        state.trials.rung.append(0)
        state.trials.status.append(OPEN)
        state.open += 1
        books = state.brackets[number]
        books.created += 1
        books.next[0] += 1
        why = f"bracket {number + 1}" if len(state.brackets) > 1 else ""
        seed = trial_seed(self.seed, trial)
        actions.append(Create(trial, params, seed, state.until, why=why))

    def _promote(
        self, state: HalvingState, books: Books, chosen: Promotion, actions: list[Action]
    ) -> None:
        """A paused trial of a rung goes on; what it has reported since then counts now."""
        rung = chosen.rung
        trial = books.waiting[rung].pop(chosen.index)[2]
        trains = state.trials.status[trial - 1] == PAUSED
        books.on[rung] += 1
        books.next[rung + 1] += 1
        state.trials.status[trial - 1] = OPEN
        state.open += 1
        told: list[Action] = [
            Continue(trial, state.until, f"{state.place(trial, self._unit)}: {chosen.why}")
        ]
        late = state.trials.late.pop(str(trial), [])
        for place, (length, found) in enumerate(late):
            self._climb(state, trial, length, found, told)
            if state.trials.status[trial - 1] == PAUSED:
                state.trials.late[str(trial)] = late[place:]
            if state.trials.status[trial - 1] != OPEN:
                break
        if trains:
            actions += told
        else:
            self._settle(state, books, trial, actions)

    def _settle(self, state: HalvingState, books: Books, trial: int, actions: list[Action]) -> None:
        """A promoted trial that has trained all the way already takes no place."""
        match state.trials.status[trial - 1]:
            case book.PAUSED:
                state.trials.status[trial - 1] = FULL
                return
            case book.LEAVING | book.STOPPED:
                state.leaving -= 1
            case book.OPEN:
                state.open -= 1
                rung = state.trials.rung[trial - 1]
                books.next[rung] -= 1
                for below in range(rung if self.version > 4 else 0):
                    books.on[below] -= 1
                actions += self._doubt_length(state, trial)
        self._close(state, trial, good=True)

    def _heighten(self, state: HalvingState, books: Books, length: int) -> None:
        """Add a rung above what was the whole training."""
        resize.heighten(state, books, length)

    # -- looking things up -------------------------------------------------------------------

    @property
    def _unit(self) -> str:
        return self.time_metric or (self.until.unit if self.until else "")

    @functools.cached_property
    def _cut(self) -> Cut:
        paced = self.version == 5 and self.rule.paced and self.sampler.learns
        return Cut.of(self.divisor, self.rule.cohorts, self.promotion_share, paced)

    @functools.cached_property
    def _order(self) -> ranking.Ordering:
        alone = Goals((Objective(self.metric, self.smaller_is_better),))
        return ranking.by(self.goals or alone)

    @property
    def _wanted(self) -> str:
        """The metrics that trials have to report."""
        return self.metric if self.goals is None else ", ".join(self.goals.lacking({}, EVER))
