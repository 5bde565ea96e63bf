"""``--more-trials`` and ``--longer``: extensions of a search beyond its config."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import click

from hpcdet.config.load import changing
from hpcdet.errors import UsageError
from hpcdet.read.experiment import changes
from hpcdet.read.experiment.gather import Gathered
from hpcdet.store.config import overrides

_POPULATION = "its number of members is fixed"
_LARGER = "--longer trains them further; for more of them submit with another population_size"
_ANOTHER = "submit another experiment"
_NO_MORE = {
    "single": ("it is one trial", _ANOTHER),
    "grid": ("its points are in the config", _ANOTHER),
    "schedule": ("its steps are in the config", _ANOTHER),
    "pbt": (_POPULATION, _LARGER),
    "pb2": (_POPULATION, _LARGER),
}
"""Why a search makes no more trials, and what can be done instead."""
_ALL_BEGUN = ("single", "pbt", "pb2")
"""Searches with nobody left to train longer once a policy has stopped all that there are."""


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the two options, as ``more_trials`` and ``longer``."""
    longer = click.option(
        "--longer",
        metavar="LENGTH",
        help="Extend training to LENGTH: 2000 in the unit of max_length, 40epochs.",
    )
    more = click.option(
        "--more-trials",
        type=click.IntRange(min=1),
        metavar="N",
        help="Let the search make N more trials.",
    )
    return more(longer(command))


def wanted(
    gathered: Gathered, more_trials: int | None, longer: str | None, trials: int | None = None
) -> dict[str, Any]:
    """Return their changes to the config of one experiment; ``trials`` as ``possible``.

    Raises:
        UsageError: its search cannot go on further in this way.
    """
    now = changes.effective(gathered).searcher
    found: dict[str, Any] = {}
    if more_trials:
        found[overrides.MAX_TRIALS] = now.max_trials + more_trials
        possible(gathered, found, trials)
    if longer:
        possible(gathered, (overrides.MAX_LENGTH,), trials)
        match = re.fullmatch(r"(\d+)\s*([a-z]*)", longer.strip())
        if now.max_length is None:
            raise UsageError(
                "the code of this experiment decides how long trials train",
                where=gathered.id,
                hint="no searcher.max_length",
            )
        if match is None or match[2] not in ("", now.max_length.unit):
            raise UsageError(
                f"{longer!r} is no length in {now.max_length.unit}",
                where="--longer",
                hint=f"--longer {2 * now.max_length.value}",
            )
        if int(match[1]) <= now.max_length.value:
            raise UsageError(
                f"trials train until {now.max_length} already",
                where=gathered.id,
                hint=f"--longer {2 * now.max_length.value}",
            )
        length = {now.max_length.unit: int(match[1])}
        found[overrides.MAX_LENGTH] = changing.checked(overrides.MAX_LENGTH, length)
    return found


def further(gathered: Gathered, changed: Mapping[str, Any]) -> bool:
    """True if changes (dotted key to value) ask for more or longer trials than until now."""
    config = changes.effective(gathered, pending=False)  # the rest may be asked for once more
    now, then = config.searcher, overrides.lay(config, changed).searcher
    if now.max_length is None or then.max_length is None:
        return then.max_trials > now.max_trials
    return then.max_trials > now.max_trials or then.max_length.value > now.max_length.value


def possible(gathered: Gathered, changed: Collection[str], trials: int | None = None) -> None:
    """Check that the search can be extended by changes of these keys (dotted).

    Args:
        trials: as the search was before it made more than these; None: as it is now.

    Raises:
        UsageError: it would hear of them and do nothing.
    """
    now = changes.effective(gathered).searcher
    name, why = now.name, _last_words(gathered, trials)
    ended_by = why.partition(":")[0] in now.stopping
    if now.stopping_version == 1 and ended_by and not overrides.FURTHER.isdisjoint(changed):
        raise UsageError(
            f"the search has ended, and its version of the policies cannot reopen it ({why})",
            where=gathered.id,
            hint=f"submit anew; searcher.warm_start takes what {gathered.id} has shown",
        )
    if overrides.MAX_TRIALS in changed and name in _NO_MORE:
        why, hint = _NO_MORE[name]
        what = f"a search by {name} has no more trials: {why}"
        raise UsageError(what, where=gathered.id, hint=hint)
    stopped = ended_by and name in _ALL_BEGUN and not _some_trained_in_full(gathered)
    if overrides.MAX_LENGTH in changed and stopped:
        raise UsageError(
            f"a policy has stopped its trials, and a search by {name} makes no others ({why})",
            where=gathered.id,
            hint=f"submit again; searcher.begin_from continues from a checkpoint of {gathered.id}",
        )
    if overrides.MAX_LENGTH in changed and name == "schedule":
        raise UsageError(
            "a schedule trains until its last step",
            where=gathered.id,
            hint="submit it with another step in searcher.schedule.steps; "
            "begin_from continues from the last checkpoint of this one",
        )


def _last_words(gathered: Gathered, trials: int | None) -> str:
    """Return why the search ended; "" if open or without reason. ``trials`` as ``possible``."""
    why, made = "", 0
    for line in gathered.decisions:
        kind = line["action"]["kind"] if line["kind"] == "action" else ""
        made += kind == "create"
        if trials is not None and made > trials:
            return why
        if kind in ("create", "continue", "shutdown"):
            why = str(line["action"].get("why", "")) if kind == "shutdown" else ""
    return why


def _some_trained_in_full(gathered: Gathered) -> bool:
    """True if a trial's last attempt ended because it had reached its target length."""
    events = (line["event"] for line in gathered.decisions if line["kind"] == "event")
    ends = {event["trial"]: event["reason"] for event in events if event["kind"] == "segment_end"}
    return "target" in ends.values()
