"""The enumerations of ``determined.experimental.client``, and our states in its words."""

from __future__ import annotations

import enum

_RUNNING = (
    *("ACTIVE", "PAUSED", "STOPPING_COMPLETED", "STOPPING_CANCELED", "STOPPING_KILLED"),
    *("STOPPING_ERROR", "COMPLETED", "CANCELED", "ERROR", "QUEUED", "PULLING", "STARTING"),
    "RUNNING",
)


def _states(name: str, words: tuple[str, ...], before: str = "STATE_") -> type[enum.Enum]:
    return enum.Enum(name, {word: f"{before}{word}" for word in words})  # type: ignore[return-value]


TrialState = _states("TrialState", _RUNNING)
ExperimentState = _states("ExperimentState", (*_RUNNING, "DELETED", "DELETING", "DELETE_FAILED"))
CheckpointState = _states(
    "CheckpointState", ("ACTIVE", "COMPLETED", "ERROR", "DELETED", "PARTIALLY_DELETED")
)
DownloadMode = _states("DownloadMode", ("AUTO", "DIRECT", "MASTER"), "")


class OrderBy(enum.Enum):
    """The direction of a list."""

    ASCENDING = "ORDER_BY_ASC"
    DESCENDING = "ORDER_BY_DESC"
    ASC = ASCENDING
    DESC = DESCENDING


CheckpointOrderBy = ExperimentOrderBy = TrialOrderBy = ModelOrderBy = OrderBy


class CheckpointSortBy(enum.Enum):
    """Keys by which checkpoints are sorted."""

    END_TIME = "time"
    STATE = "state"
    UUID = "path"
    TRIAL_ID = "trial"
    BATCH_NUMBER = "step"
    SEARCHER_METRIC = "metric"


class TrialSortBy(enum.Enum):
    """Keys by which trials are sorted."""

    ID = "trial"
    START_TIME = "start"
    END_TIME = "end"
    STATE = "state"
    BEST_VALIDATION_METRIC = "best"
    BATCHES_PROCESSED = "steps"
    RESTARTS = "restarts"


class ExperimentSortBy(enum.Enum):
    """Keys by which experiments are sorted."""

    ID = "id"
    NAME = "name"
    START_TIME = "created"
    STATE = "state"
    NUM_TRIALS = "trials"
    PROGRESS = "progress"
    USER = "user"
    PROJECT_ID = "project"
    SEARCHER_METRIC_VAL = "best"


_THEIRS = {"PENDING": "QUEUED", "STOPPING": "STOPPING_CANCELED", "STOPPED": "COMPLETED"}
"""Our words where theirs are others; a trial that the search has stopped is completed there."""


def their_word(state: str) -> str:
    """Return Determined's word for a state of ours."""
    return _THEIRS.get(state, state)


def our_words(states: object) -> list[str]:
    """Return our words for some of Determined's states."""
    ours = {theirs: own for own, theirs in _THEIRS.items() if own != "STOPPED"}
    names = [one.name for one in states]  # type: ignore[attr-defined]
    return [ours.get(name, name) for name in names]
