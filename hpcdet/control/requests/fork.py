"""Forks: a new experiment whose search continues another one's from a chosen point.

Its records begin with those of the other search up to that point, unchanged, so that the same
searcher reaches the same state by them. Trials that had ended by then are carried over with all
of their files (hard links: they take no room, and the other experiment is not touched); the others
begin from their newest checkpoint up to the length that the search had a report of. From then on
the two experiments are independent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdet.control.leader.decided_state import Decided
from hpcdet.control.leader.trial_plan import TrialPlan
from hpcdet.control.requests import commands
from hpcdet.errors import IntegrityError, Unavailable, UsageError
from hpcdet.jobs.create import create
from hpcdet.search.api import codec
from hpcdet.search.api import events as api
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.config import resolved_config
from hpcdet.store.config.overrides import OF_SEARCH
from hpcdet.store.decisions import chain
from hpcdet.store.decisions.chain import Chain
from hpcdet.store.decisions.lease import Lease
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Best
from hpcdet.store.fs import files, packed
from hpcdet.store.fs.journal import Line
from hpcdet.store.fs.json_record import number
from hpcdet.store.trials import hard_links, parents
from hpcdet.store.trials.parents import ORIGIN, Donation, Parent
from hpcdet.units import Length, Unit

_KINDS = frozenset({"event", "action", "retry", "fail", "clone"})
"""Records that say how a search went. What its users asked for is asked for again, or not."""
_OF_LINE = frozenset({"n", "kind", "term", "crc"})
_BY_COMMANDS = ("allowed", "base", "failed", "given_up", "killed", "rewinds")
"""Of a plan: what commands, too, have made of it."""


@dataclass(frozen=True)
class Forked:
    """The result of a fork.

    Attributes:
        events: events of the other search that this one has heard.
        carried: trials that had ended: all of their files are here.
        going: trials that go on, and the length that each begins from.
        anew: trials that had not ended and have no checkpoint: they begin again.
        named: what trials of the last two have for a parent, as ``store.trials.parents`` writes it.
    """

    paths: ExperimentPaths
    events: int
    carried: list[int] = field(default_factory=list)
    going: dict[int, Length] = field(default_factory=dict)
    anew: list[int] = field(default_factory=list)
    named: dict[int, str] = field(default_factory=dict)


def fork(
    source: ExperimentPaths,
    changes: Mapping[str, Any],
    trials: int | None = None,
    name: str | None = None,
    dry: bool = False,
) -> Forked:
    """Make an experiment beside ``source`` that goes on with its search.

    Args:
        changes: of the config, as ``hpcdet set`` takes them; those of ``source`` hold, too.
        trials: as it was before it made more trials than these; None: as it is now.
        name: of the new experiment; that of ``source`` if it is not given.
        dry: only look what would come of it; nothing is made, and the paths are those of
            ``source``.

    Raises:
        UsageError: the search was over by then, had not begun, or a trial has gone on since.
        ConfigError: the config cannot be read.
        IntegrityError: not all records of the search can be read.
        GovernanceBroken: a checkpoint to go on from is not what its trial's ledgers say.
        Unavailable: it cannot be written.
    """
    every = chain.whole(source)
    lines = every if trials is None else _until(every, trials, source)
    then, now = _folded(lines), _folded(every)
    if not then.searcher.started:
        raise UsageError("the search has not begun", where=source.id, hint="submit it again")
    further = any(
        then.user.overrides.get(key) != changes[key] for key in OF_SEARCH & changes.keys()
    )
    if then.searcher.shutdown is not None and not further:
        hint = "extend it: --set searcher.max_trials=N, or fork from an earlier point: --trials N"
        raise UsageError("its search is over", where=source.id, hint=hint)
    for plan in then.trials.plans.values():
        later = now.trials.plans[plan.number]
        if plan.ended and (later.ended, later.told) != (plan.ended, plan.told):
            what = f"trial {plan.number} had ended by then and has trained on since"
            raise UsageError(what, where=source.id, hint="fork it at a later point")
    events = sum(line["kind"] == "event" for line in lines)
    found = Forked(source, events)

    def begins() -> list[tuple[TrialPlan, Donation | None]]:
        given = [(one, _begins(source, found, then, one)) for one in then.trials.plans.values()]
        _refuse_broken(source, [donation for _, donation in given if donation])
        return given

    if dry:
        begins()
        return found

    def fill(paths: ExperimentPaths) -> None:
        nonlocal found
        found = Forked(paths, events)
        for plan, donation in begins():
            trial = paths.trial(plan.number)
            if plan.ended:
                _link_all(source.trial(plan.number), trial)
            elif donation is not None:
                parents.give(donation, trial)
                parents.give_ledgers(donation, trial)
        _write_records(source, found, lines, then)
        _write_best(source, paths, lines)
        asked = {**then.user.overrides, **changes}
        if asked:
            commands.ask(paths, "set", **asked)

    create.again(source, fill, name)
    return found


def _folded(lines: list[Line]) -> Decided:
    """Fold records to the decided state, without running the searcher."""
    decided = Decided(_Deaf())
    for line in lines:
        decided.take(line)
    return decided


@dataclass(frozen=True)
class _Deaf:
    """A searcher that wants nothing, as its actions are in the records."""

    name: str = ""
    version: int = 0

    def initial(self) -> api.State:
        return {}

    def on_event(self, state: api.State, event: api.Event) -> tuple[api.State, list[api.Action]]:
        return state, []


def _until(lines: list[Line], trials: int, source: ExperimentPaths) -> list[Line]:
    """Return the records before the event at which the search exceeded this number of trials."""
    end = made = 0
    for place, line in enumerate(lines):
        if line["kind"] == "event":
            end = place
        elif line["kind"] == "action" and line["action"]["kind"] == "create":
            made += 1
            if made > trials:
                if not any(before["kind"] == "event" for before in lines[:end]):
                    what = f"it made more than {trials} trials at its very beginning"
                    raise UsageError(what, where=source.id, hint="submit it again")
                return lines[:end]
    return lines


def _begins(
    source: ExperimentPaths, found: Forked, then: Decided, plan: TrialPlan
) -> Donation | None:
    """Record how a trial continues in the new experiment; return what it begins from."""
    if plan.ended:
        found.carried.append(plan.number)
        return None
    old = source.trial(plan.number)
    unit = plan.until.unit if plan.until else "batches"
    parent = None if plan.origin == {} else Parent.parse(plan.parent)
    inherited = (plan.origin or {}).get("units", {}).get(unit, 0)
    if plan.origin is None and parent and parent.length and parent.length.unit == unit:
        inherited = parent.length.value  # what the search counts from, linked by then or not
    heard = max(plan.told, inherited)
    own = [one for one in parents.donations(old, unit) if one.at <= heard]
    abroad = parent is not None and parent.experiment == ORIGIN.experiment
    if own and not (abroad and own[-1].inherited):  # else it begins here as it did there
        return _goes_on(source, found, plan, plan.number, unit, own[-1])
    if parent is not None:
        donor = None if parent.experiment else then.trials.plans.get(parent.trial)
        if donor is not None and not donor.ended and donor.number < plan.number:
            # here it begins from its newest, which may be behind what this one is to begin from
            length = parent.length or Length(unit, max(donor.told, 0))
            given = parents.choose(
                parents.donations(source.trial(donor.number), length.unit), length
            )
            if given is not None:
                return _goes_on(source, found, plan, donor.number, length.unit, given)
        found.named[plan.number] = plan.parent  # which is here, too, or will be
    found.anew.append(plan.number)
    return None


def _goes_on(
    source: ExperimentPaths, found: Forked, plan: TrialPlan, donor: int, unit: Unit, given: Donation
) -> Donation:
    """Record what a trial continues from."""
    at = Length(unit, given.at)
    found.named[plan.number] = str(Parent(donor, at, f"../{source.id}"))
    found.going[plan.number] = at
    return given


def _refuse_broken(source: ExperimentPaths, given: Iterable[Donation]) -> None:
    """Refuse checkpoints of governed trials that no node would begin from.

    Raises:
        GovernanceBroken: one is not what the ledgers of its trial say.
    """
    if resolved_config.load(source.config).governance is None:
        return
    # most experiments have no policy
    from hpcdet.read.governed.attested_trials import AttestedTrial, GovernedExperiment

    experiment = GovernedExperiment(source)
    for one in given:
        if one.donor is not None:
            AttestedTrial(experiment, one.donor).check(one.folder)


def _link_all(old: TrialPaths, new: TrialPaths) -> None:
    """Link every file of an ended trial. Raises Unavailable while they are being packed."""
    pairs = [(old.root, new.root)]
    if old.scratch and new.scratch:
        pairs.append((old.scratch, new.scratch))
    try:
        for source, target in pairs:
            if source.is_dir():
                hard_links.tree(source, target)
    except FileNotFoundError as error:
        what = f"trial {old.number} is changing at the moment"
        raise Unavailable(what, where=str(old.root), hint="try again in a minute") from error


def _write_records(
    source: ExperimentPaths, found: Forked, lines: list[Line], then: Decided
) -> None:
    """Write the records of the other search, then what its open trials begin from here."""
    paths = found.paths
    lease = Lease(paths, "fork", from_resolved(source.site).lease_ttl_s)
    # what the carried trials were told by holders of the other one is older than what is to come
    lease.after = max(packed.numbers(source.terms, ".json"), default=0)
    if not lease.try_acquire():
        raise IntegrityError("another process decides for it already", where=str(paths.root))
    records = Chain.open(paths, lease.term, "fork")
    try:
        # workers of the other one, whom claims and controls name, are none of this one's
        last = max([then.jobs.submissions, *source.submissions()])
        about_source = {"experiment": source.id, "events": found.events, "submissions": last}
        records.note("forked", **about_source, longer=then.searcher.longer)
        for line in lines:
            if line["kind"] in _KINDS:
                about = {key: value for key, value in line.items() if key not in _OF_LINE}
                records.note(line["kind"], **about)
        fresh = {str(n): found.named.get(n, "") for n in [*found.going, *found.anew]}
        records.note("adopt", parents=fresh, carried=_by_commands(lines, then))
        records.commit()
    finally:
        records.close()
        lease.release()


def _by_commands(lines: list[Line], then: Decided) -> dict[str, dict[str, Any]]:
    """Return the fields of ended trials that users' commands set, which are not carried over."""
    heard = _folded([line for line in lines if line["kind"] in _KINDS])
    found: dict[str, dict[str, Any]] = {}
    for plan in then.trials.plans.values():
        alike = heard.trials.plans[plan.number]
        other = [name for name in _BY_COMMANDS if getattr(plan, name) != getattr(alike, name)]
        if plan.ended and other:
            found[str(plan.number)] = {name: getattr(plan, name) for name in other}
    return found


def _write_best(source: ExperimentPaths, paths: ExperimentPaths, lines: list[Line]) -> None:
    """Write ``best.json``, for trials that keep checkpoints by the best value of all."""
    searcher = resolved_config.load(source.config).searcher
    best: Best | None = None
    for line in lines:
        event = codec.decode_event(line["event"]) if line["kind"] == "event" else None
        if isinstance(event, api.Report) and searcher.metric in event.metrics:
            if searcher.constraints:
                stands = searcher.goals.standing(event.metrics, event.length.value)
                if not stands.feasible:
                    continue  # as in ``best_validation.remember``
            value = number(event.metrics[searcher.metric])
            seen = Best(event.trial, value, event.length, line.get("t", ""))
            if seen.beats(best, searcher.smaller_is_better):
                best = seen
    if best is not None:
        files.replace(paths.best, best.encode())
