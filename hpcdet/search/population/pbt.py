"""Population-based training: trials that do badly are replaced by copies of those that do well.

(Jaderberg et al., Population Based Training of Neural Networks, 2017.) A population of members
trains side by side. After each interval a member is compared with the others; one of the worst is
given up, and a new trial takes its place, which begins from a checkpoint of one of the best, with
hyperparameters near that one's. So a member is a row of trials, of which one lives.

A member is compared with what the others have shown by then, and goes on at once; where the search
is synchronous, all wait for the last of an interval. With fewer places than members trials are
made to train one interval at a time, and a free place goes to the member that is least far: nobody
waits in a place.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from hpcdet.goals import Goals, Objective, finite
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
from hpcdet.search.halving.promotion import hopeless
from hpcdet.search.halving.sanity import ENOUGH, said, unseen
from hpcdet.search.population.explore import Explorer
from hpcdet.search.population.members import (
    DONE,
    GONE,
    HELD,
    LIVING,
    TRAINS,
    WAITS,
    Member,
    PopulationState,
    PopulationView,
    cut,
    ranked,
)
from hpcdet.space.domains import below
from hpcdet.space.errors import SpaceError
from hpcdet.space.space import bits, trial_seed
from hpcdet.store.trials.parents import Parent
from hpcdet.units import Length

FAILURES = 3
"""So many failed trials for each member are replaced, over the whole search."""


@dataclass(frozen=True)
class Pbt:
    """A search by a population.

    Attributes:
        interval: length between two comparisons, in the unit of ``until``.
        quantile: share of the population that is given up, and that may be copied.
        max_concurrent: places; 0: as many as members.
        synchronous: each interval ends for all members together.
        goals: the metric and constraints, where there are any; None: the metric alone.
    """

    sampler: Sampler
    explorer: Explorer
    seed: int
    until: Length
    population: int
    interval: int
    quantile: float
    max_concurrent: int
    metric: str
    smaller_is_better: bool = True
    synchronous: bool = False
    goals: Goals | None = None
    name: str = "pbt"
    version: int = field(default=2, init=False)

    def initial(self) -> PopulationState:
        members = [Member() for _ in range(self.population)]
        return PopulationState(members, until=self.until.value, places=self.max_concurrent)

    def on_event(
        self, state: PopulationState, event: Event
    ) -> tuple[PopulationState, list[Action]]:
        """Ignore reports of trials that have been given up."""
        if state.over and not isinstance(event, Limits):
            return state, []
        actions: list[Action] = []
        match event:
            case Start():
                pass
            case Report(trial=trial) if self._lives(state, trial):
                self._hear(state, event, actions)
            case SegmentEnd(trial=trial) if self._lives(state, trial):
                self._end(state, event, actions)
            case Limits():
                self._change(state, event, actions)
            case _:
                return state, []
        if self.synchronous:
            self._round(state, actions)
        self._fill(state, actions)
        return state, actions

    # -- reports and ends --------------------------------------------------------------------

    def _hear(self, state: PopulationState, report: Report, actions: list[Action]) -> None:
        one, length = state.member(report.trial), report.length.value
        if report.length.unit != self.until.unit or length <= one.at:
            return
        self._look_for_metric(state, report, actions)
        state.in_a_row = 0
        if self.explorer.learns:
            found = ranking.loss(report.metrics, self.metric, self.smaller_is_better)
            state.seen.append([report.trial, length, found])
        generation = length // self.interval
        if generation <= one.generation:
            return
        worth = self._order.worth(report.metrics, length)
        one.shows(length, worth, generation)
        if one.status != TRAINS or length >= one.goal:
            return  # it leaves, or is about to say that it has come to its goal
        if self._is_bad(state, one):
            actions.append(Stop(one.trial, f"{self._place(state, one)}: it is given up"))
            self._replace(state, one, self._donors(state, one.generation), actions)
        elif self._somebody_is_behind(state, one):
            actions.append(Pause(one.trial, "members that are less far train now"))
            one.status = WAITS

    def _look_for_metric(
        self, state: PopulationState, report: Report, actions: list[Action]
    ) -> None:
        if finite(report.metrics.get(self.metric)) is not None:
            state.mute.settle()
        elif (count := state.mute.add(report.trial)) >= min(ENOUGH, self.population):
            state.mute.settle()
            actions.append(Ask(unseen(count, self.metric) + said(report.metrics)))

    def _end(self, state: PopulationState, end: SegmentEnd, actions: list[Action]) -> None:
        one, refused = state.member(end.trial), end.reason == "invalid_hp"
        state.in_a_row = state.in_a_row + 1 if refused else 0
        if end.reason == "target":
            self._reach(state, one, actions)
        elif refused or end.reason in ("failed", "violated"):
            state.failures += not refused
            if state.failures > FAILURES * self.population:
                one.status = GONE
            elif self.synchronous and one.generation:
                one.trial, one.status = 0, HELD
            else:
                one.trial = 0
                self._replace(state, one, self._donors(state, 0), actions)
        else:
            state.good += end.reason in ("stopped", "user_exit")
            one.status = GONE

    def _reach(self, state: PopulationState, one: Member, actions: list[Action]) -> None:
        """A trial has come to the length that it was asked for."""
        goal = one.goal
        if goal >= state.until:
            state.good += 1
            one.status = DONE
            return
        if one.at < goal:  # and has reported nothing there
            one.shows(goal, None, goal // self.interval)
        one.status = HELD if self.synchronous else WAITS
        if not self.synchronous and self._is_bad(state, one):
            self._replace(state, one, self._donors(state, one.generation), actions)

    def _round(self, state: PopulationState, actions: list[Action]) -> None:
        """Once all have come to the end of an interval, the worst are given up."""
        held = state.living
        if any(one.status != HELD for one in held):
            return
        bad = [one for one in held if not one.trial or self._is_bad(state, one)]
        found = self._donors(state, held[0].generation) if bad else []
        # who began anew is shorter than the rest, and ranks among others than these do
        donors = [one for one in found if all(one is not each for each in bad)]
        for one in bad:
            self._replace(state, one, donors, actions)
        for one in held:
            one.status = WAITS

    # -- who is good, who is bad -------------------------------------------------------------

    def _is_bad(self, state: PopulationState, one: Member) -> bool:
        """True if a member is among the worst, and another may be copied."""
        place, of = self._rank(state, one)
        number = cut(self.quantile, self.population, of)
        return place >= of - number and bool(self._donors(state, one.generation))

    def _donors(self, state: PopulationState, generation: int) -> list[Member]:
        """Members that may be copied: the best ones, of those that are not at the end."""
        scores = ranked(state, generation, self._order)
        number = max(cut(self.quantile, self.population, len(scores)), 1)
        best = [entry for entry in scores[:number] if ranking.loss_of(entry) is not None]
        found = [state.member(entry[2]) for entry in best]
        return [each for each in found if each.at < state.until]

    def _rank(self, state: PopulationState, one: Member) -> tuple[int, int]:
        """The rank of a member, 0 for the best, and among how many."""
        scores = ranked(state, one.generation, self._order)
        own = self._order.entry(one.score[0], one.trial)
        return ranking.rank(scores, own), len(scores)

    def _place(self, state: PopulationState, one: Member) -> str:
        place, of = self._rank(state, one)
        return f"rank {place + 1} of {of} at {one.at} {self.until.unit}"

    @functools.cached_property
    def _order(self) -> ranking.Ordering:
        alone = Goals((Objective(self.metric, self.smaller_is_better),))
        return ranking.by(self.goals or alone)

    def _replace(
        self, state: PopulationState, one: Member, donors: list[Member], actions: list[Action]
    ) -> None:
        """Its trial is over; an heir of a better one is made, or, without any, a new one later.

        An heir is made at once, so that it gets the checkpoint that its parent has now.
        """
        if not donors or hopeless(state.in_a_row, self.sampler):
            one.replace()
            return
        number = len(state.of) + 1
        donor = donors[below(bits(self.seed, number, ("", "donor")), len(donors))]
        trial, at = donor.trial, donor.at
        known, view = state.params[str(trial)], PopulationView(state)
        params = self.explorer.explore(view, trial, known, number)
        why = f"an heir of trial {trial}, {self._place(state, donor)}"
        seed = state.seeds[str(trial)]
        if self.explorer.learns:  # what the heir begins with
            state.seen.append([number, at, donor.score[0]])
        one.replace(at, at // self.interval)
        parent = str(Parent(trial, self._length(at)))
        self._make(state, one, Create(number, params, seed, None, parent, why), actions)

    # -- places ------------------------------------------------------------------------------

    def _fill(self, state: PopulationState, actions: list[Action]) -> None:
        """Give every free place to the member that is least far; the end, if none is left."""
        made = {action.trial for action in actions if isinstance(action, Create)}
        members = state.members
        why_not = hopeless(state.in_a_row, self.sampler)
        places = state.places or self.population
        while state.training < places:
            waiting = [one for one in members if one.status == WAITS]
            if not waiting:
                break
            one = min(waiting, key=lambda each: each.generation)
            one.status = TRAINS
            if one.trial in made:
                continue
            if one.trial:
                one.goal = self._goal(state, one.at)
                actions.append(Continue(one.trial, self._length(one.goal)))
                continue
            try:
                if why_not:
                    raise SpaceError((), why_not)
                self._begin(state, one, actions)
            except SpaceError as error:
                why_not = error.what
                one.status = GONE
        idle = made & {one.trial for one in members if one.status == WAITS}
        actions += [Pause(trial, "it waits for a place") for trial in sorted(idle)]
        if not state.living:
            state.over = True
            failed = not state.good
            actions.append(Shutdown(failed, why_not or ("no trial succeeded" if failed else "")))

    def _begin(self, state: PopulationState, one: Member, actions: list[Action]) -> None:
        """A trial that begins from nothing. Raises SpaceError if there are no hyperparameters."""
        number = len(state.of) + 1
        params = self.sampler.suggest(PopulationView(state), number)
        self._make(state, one, Create(number, params, trial_seed(self.seed, number), None), actions)

    def _make(
        self, state: PopulationState, one: Member, new: Create, actions: list[Action]
    ) -> None:
        goal = self._goal(state, one.at)
        one.trial, one.goal = new.trial, goal
        state.of.append(next(n for n, each in enumerate(state.members) if each is one))
        state.params[str(new.trial)], state.seeds[str(new.trial)] = new.params, new.seed
        if not self.explorer.learns:
            alive = {str(each.trial) for each in state.members}
            for known in (state.params, state.seeds):
                for trial in known.keys() - alive:
                    del known[trial]
        until = self._length(goal)
        actions.append(Create(new.trial, new.params, new.seed, until, new.parent, new.why))

    def _goal(self, state: PopulationState, at: int) -> int:
        """How far a member is to train now: to the end, or of the next interval."""
        until = state.until
        in_turns = self.synchronous or len(state.living) > (state.places or self.population)
        return min((at // self.interval + 1) * self.interval, until) if in_turns else until

    def _somebody_is_behind(self, state: PopulationState, one: Member) -> bool:
        """True if a member that is less far waits, and no place is free."""
        others = [each for each in state.living if each.generation < one.generation]
        full = state.training >= (state.places or self.population)
        return full and any(each.status == WAITS for each in others)

    # -- what users change -------------------------------------------------------------------

    def _change(self, state: PopulationState, limits: Limits, actions: list[Action]) -> None:
        """More or fewer places, and longer training; the population stays as it is."""
        state.over, state.places = False, limits.max_concurrent
        longer = limits.max_length
        if longer is None or longer.unit != self.until.unit or longer.value <= state.until:
            return
        for one in state.members:
            if one.status == DONE:
                state.good -= 1
                one.status, one.at = WAITS, state.until
            elif one.status == TRAINS and one.goal == state.until:
                one.goal = longer.value
                why = "the search was made longer"
                actions.append(Continue(one.trial, longer, why))
        state.until = longer.value

    # -- looking things up -------------------------------------------------------------------

    def _lives(self, state: PopulationState, trial: int) -> bool:
        if not 1 <= trial <= len(state.of):
            return False
        one = state.member(trial)
        return one.trial == trial and one.status in LIVING

    def _length(self, value: int) -> Length:
        return Length(self.until.unit, value)
