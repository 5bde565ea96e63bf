"""Experiments of Determined, from the JSON of its command line and its REST API.

Understood are, in one or several files, each alone or in lists: what ``det experiment describe ID
--json`` prints (``{"experiment": ...}``), ``det trial describe ID --json --metrics`` (``{"trial":
..., "workloads": [...]}``), and ``{"trials": [...]}`` of ``/api/v1/experiments/ID/trials``. In
Determined 0.38 the first of these has no trials, with ``--metrics`` as without.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.interop.imported.determined_keys import shown, without_secrets
from hpcdet.interop.imported.foreign import (
    ForeignCheckpoint,
    ForeignExperiment,
    ForeignMetrics,
    ForeignTrial,
    State,
    utc,
)
from hpcdet.store.fs import bounded_json, files, json_record

_ENDS: dict[str, State] = {
    "COMPLETED": "COMPLETED",
    "STOPPING_COMPLETED": "COMPLETED",
    "ERROR": "ERROR",
    "STOPPING_ERROR": "ERROR",
    "DELETE_FAILED": "ERROR",
}
"""All others are ``CANCELED``: they did not end of themselves, or had not ended."""

_MOST = 1 << 53
_LONGEST_NAME = 100

Object = dict[str, Any]


def read(paths: Sequence[Path]) -> list[ForeignExperiment]:
    """Return the experiments in files, by their ids.

    Raises:
        ConfigError: a file is no JSON, or has nothing of Determined's; the message says where.
        OSError: as ``open``.
    """
    experiments: dict[int, Object] = {}
    configs: dict[int, Object] = {}
    trials: dict[int, Object] = {}
    workloads: dict[int, list[Object]] = {}
    for path in paths:
        before = len(experiments) + len(trials)
        try:
            for part in _parts(_json(path)):
                if isinstance(found := part.get("experiment"), dict):
                    number = _whole(found, "id")
                    experiments[number] = found
                    configs[number] = _object(part.get("config") or found.get("config") or {})
                for trial in [part.get("trial"), *_list(part.get("trials"))]:
                    inner = trial.get("trial", trial) if isinstance(trial, dict) else None
                    if not isinstance(inner, dict):
                        continue
                    number = _whole(inner, "id")
                    trials[number] = inner
                    told = (part if trial is inner else trial).get("workloads")
                    if isinstance(told, list):
                        workloads[number] = told
        except _Wrong as error:
            raise ConfigError(str(error), where=str(path), hint=_HINT) from None
        if len(experiments) + len(trials) == before and not (experiments or trials):
            raise ConfigError("there is nothing of Determined in it", where=str(path), hint=_HINT)
    return [
        _experiment(one, configs[number], trials, workloads, str(paths[0]))
        for number, one in sorted(experiments.items())
    ]


_HINT = "det experiment describe ID --json > ID.json"


class _Wrong(ValueError):
    """A value that Determined does not write."""


def _json(path: Path) -> Any:
    try:
        return _sound(
            bounded_json.json_value(files.read(path, files.HUGE), bounded_json.MANY_NODES)
        )
    except (ValueError, bounded_json.Unreasonable) as error:
        raise _Wrong(f"it is no JSON: {error}") from error


def _sound(value: Any) -> Any:
    """Return a value as records can have it: strict JSON, and texts that UTF-8 can hold."""
    if isinstance(value, dict):
        return {_sound(key): _sound(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_sound(each) for each in value]
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return json_record.finite(value)


def _object(value: Any) -> Object:
    if not isinstance(value, dict):
        raise _Wrong("the config is no object")
    return value


def _parts(value: Any) -> Iterator[Object]:
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, list):
            yield from _parts(part)
        elif isinstance(part, dict):
            yield part


def _experiment(
    said: Object,
    config: Object,
    trials: Mapping[int, Object],
    workloads: Mapping[int, Any],
    at: str,
) -> ForeignExperiment:
    number = _whole(said, "id")
    own = {n: one for n, one in trials.items() if one.get("experimentId") == number}
    listed = [n for n in _list(said.get("trialIds")) if isinstance(n, int)]
    places = {n: place for place, n in enumerate(sorted({*listed, *own}), 1)}
    try:
        state = _state(said)
        start = _time(said, "startTime")
        key = f"{number} {said.get('jobId') or ''} {start}"
        written = without_secrets(config)
        found = [_trial(places[n], own[n], workloads.get(n, [])) for n in sorted(own)]
        end = _time(said, "endTime") or max((one.end for one in found), default="") or start
    except (_Wrong, ValueError) as error:
        raise ConfigError(f"experiment {number}: {error}", where=at, hint=_HINT) from None
    return ForeignExperiment(
        platform="Determined",
        id=number,
        key=key,
        name=_text(said, "name") or _text(config, "name") or f"experiment {number}",
        state=_ENDS.get(state, "CANCELED"),
        said=state,
        user=_text(said, "username"),
        start=start,
        end=end,
        config=shown(said, config),
        written=written,
        trials=found,
        missing=[n for n in listed if n not in own],
        notes=_text(said, "notes"),
        more={k: said[k] for k in ("forkedFrom", "archived", "resourcePool") if said.get(k)},
    )


def _trial(number: int, said: Object, workloads: Sequence[Any]) -> ForeignTrial:
    state = _state(said)
    start, end = _time(said, "startTime"), _time(said, "endTime")
    metrics: list[ForeignMetrics] = []
    checkpoints: dict[int, ForeignCheckpoint] = {}
    for work in workloads:
        if not isinstance(work, dict):
            raise _Wrong(f"trial {said['id']}: a workload is no object")
        for group in ("training", "validation"):
            if isinstance(one := work.get(group), dict):
                metrics += _metrics(group, one, start or end)
        one = work.get("checkpoint")
        if isinstance(one, dict) and one.get("uuid"):
            made = _checkpoint(one, end or start)
            checkpoints[made.step] = made
    metrics.sort(key=lambda one: (one.time, one.step))
    told = [(one.time, one.step) for one in metrics]
    told += [(one.time, one.step) for one in checkpoints.values()]
    last = max((time for time, _ in told), default="")
    done = max((step for _, step in told), default=0)
    params = said.get("hparams")
    return ForeignTrial(
        number=number,
        id=_whole(said, "id"),
        state=_ENDS.get(state, "CANCELED"),
        said=state,
        params=params if isinstance(params, dict) else {},
        start=start,
        end=max(end, last),
        batches=max(done, _whole(said, "totalBatchesProcessed", 0)),
        restarts=_whole(said, "restarts", 0),
        metrics=metrics,
        checkpoints=[one for _, one in sorted(checkpoints.items())],
    )


def _metrics(group: str, said: Object, before: str) -> Iterator[ForeignMetrics]:
    """Yield the metrics of a workload, and those of its batches, if there are any."""
    step, time = _whole(said, "totalBatches"), _time(said, "endTime") or before
    told = said.get("metrics")
    if not isinstance(told, dict):
        raise _Wrong(f"the metrics after {step} batches are no object")
    each = _list(told.get("batchMetrics"))
    for place, values in enumerate(each, step - len(each) + 1):
        if isinstance(values, dict) and values:
            yield ForeignMetrics(f"{group}_batch", max(0, place), time, _values(values), {})
    average = told.get("avgMetrics")
    if isinstance(average, dict) and average:
        values = _values(average)
        epochs: Any = values.get("epochs")
        known = isinstance(epochs, int | float) and 0 <= epochs < _MOST and epochs == int(epochs)
        units = {"batches": step, **({"epochs": int(epochs)} if known else {})}
        yield ForeignMetrics(group, step, time, values, units)


def _values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): _value(value) for name, value in values.items()}


def _value(value: Any) -> Any:
    """Return a value as journals have it. Determined's command line writes NaN as "Nan", too."""
    if isinstance(value, float):
        return json_record.number(value)
    if isinstance(value, dict):
        return _values(value)
    if isinstance(value, list):
        return [_value(one) for one in value]
    return "NaN" if value == "Nan" else value


def _checkpoint(said: Object, before: str) -> ForeignCheckpoint:
    resources = said.get("resources")
    sizes = resources.values() if isinstance(resources, dict) else ()
    metadata = said.get("metadata")
    name = str(said["uuid"])
    if "/" in name or "\0" in name or name.startswith(".") or len(name) > _LONGEST_NAME:
        raise _Wrong(f"a checkpoint is called {json.dumps(name)}")
    return ForeignCheckpoint(
        name=name,
        step=_whole(said, "totalBatches"),
        time=_time(said, "endTime") or before,
        bytes=sum(int(size) for size in sizes if str(size).isdecimal()),
        metadata=_values(metadata) if isinstance(metadata, dict) else {},
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _state(said: Object) -> str:
    return _text(said, "state").removeprefix("STATE_") or "UNSPECIFIED"


def _text(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    return value if isinstance(value, str) else ""


def _time(said: Object, key: str) -> str:
    """Return a time of Determined's as records have it; "" if there is none."""
    value = said.get(key)
    if not value:
        return ""
    try:
        found = utc(str(value))
    except (ValueError, OverflowError):
        found = ""
    if not files.is_time(found):
        raise _Wrong(f"{key} is {json.dumps(value)[:60]}, which is no time")
    return found


def _whole(said: Object, key: str, default: int | None = None) -> int:
    value = said.get(key, default)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
        raise _Wrong(f"{key} is {json.dumps(value)[:60]}, and no whole number from 0")
    return value
