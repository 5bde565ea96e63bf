"""Checks of changed values for an existing experiment."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from hpcdet.config.check import key_consistency, problems
from hpcdet.config.check.section_models import completed
from hpcdet.config.load import secret_references
from hpcdet.errors import ConfigError, UsageError
from hpcdet.store.config import overrides
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.notify_keys import is_address
from hpcdet.store.fs.yaml12 import scalar

_REFERENCES = ("notify.webhook.url", "notify.webhook.secret")
_USERS = ("hyperparameters", "data", "environment")  # whose own keys no model lists


def changes(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse ``["resources.walltime_s=2h"]`` to ``{"resources.walltime_s": 7200}``.

    Raises:
        UsageError: an assignment is not of the form ``key=value``.
        ConfigError: a key that cannot be changed any more, or a value that cannot be.
    """
    found = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"{assignment!r} sets nothing", where="--set", hint="--set resources.walltime_s=2h"
            )
        try:
            value = scalar(text)
        except (yaml.YAMLError, ValueError) as error:
            secret = overrides.full(name.strip()) in _REFERENCES
            what = "the value is not YAML" if secret else f"{text!r} is not YAML: {error}"
            raise UsageError(what, where=f"--set {name}") from error
        found[overrides.full(name.strip())] = checked(name.strip(), value)
    return found


def described(assignments: Sequence[str]) -> dict[str, str | None]:
    """Return what assignments say of the keys ``overrides.ABOUT``, whose values are plain text.

    An empty text removes a project or workspace. Other assignments are left aside.

    Raises:
        ConfigError: a name that no config could have.
    """
    found: dict[str, str | None] = {}
    for assignment in assignments:
        key, _, text = assignment.partition("=")
        if (key := key.strip()) in overrides.ABOUT:
            empty = not text and key in ("project", "workspace")
            found[key] = None if empty else _valid(key, text)
            if key == "name" and not text.strip():
                raise ConfigError("the name is empty", where=key, hint="hpcdet set ID name=TEXT")
    return found


def of_command(verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a user's command with its changes of the config checked.

    ``set`` names them plainly, other verbs in their argument ``set``. Raises as ``checked``.
    """
    if verb == "set":
        return {overrides.full(key): checked(key, value) for key, value in arguments.items()}
    if "set" not in arguments:
        return dict(arguments)
    return {**arguments, "set": of_command("set", arguments["set"])}


def only_longer(resolved: Resolved, changed: Mapping[str, Any]) -> None:
    """Check that changes (dotted key to value) do not make a search shorter than it is now.

    Raises:
        ConfigError: they do, or say it in another unit.
    """
    if overrides.MAX_LENGTH not in changed:
        return
    now = resolved.searcher.max_length
    then = overrides.lay(resolved, changed).searcher.max_length
    if now is None or then is None or then.unit != now.unit or then.value < now.value:
        what = f"trials train until {now}; that can only be made longer"
        raise ConfigError(what, where=overrides.MAX_LENGTH)


def fits(resolved: Resolved) -> None:
    """Check that changed keys are consistent with the rest of the config.

    Raises:
        ConfigError: one trial for each worker where it has several lanes, and the like.
    """
    values = {key: value for key, value in resolved.raw.items() if key != "schema"}
    try:
        config = completed(values)
    except ValidationError:  # another version's; what is new was checked by itself
        return
    about = (
        "hyperparameters.global_batch_size",
        "reproducibility",
        "resources",
        "searcher",
        "worker",
    )
    wrong = [p for p in key_consistency.errors(config) if p.key.startswith(about)]
    if wrong:
        raise problems.failure(wrong, {}, "experiment.yaml")


def checked(key: str, value: Any) -> Any:
    """Return the value as ``experiment.yaml`` would hold it (times in seconds, memory in bytes).

    Raises:
        ConfigError: the key does not exist or cannot be changed any more, or the value is wrong.
    """
    key = overrides.full(key)
    free = (*overrides.AT_ONCE, *overrides.LATER)
    if key not in free:
        if key not in problems.all_keys() and key.split(".")[0] not in _USERS:
            close = difflib.get_close_matches(key, free, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"these can: {', '.join(free)}"
            raise ConfigError("there is no such key", where=key, hint=hint)
        raise ConfigError(
            "the key cannot be changed: results would no longer be comparable",
            where=key,
            hint=f"submit anew; these can be changed: {', '.join(free)}",
        )
    if key in _REFERENCES and value is not None and not secret_references.is_reference(value):
        hint = f"hpcdet set ID {key}='{{env: NAME}}', or {{file: PATH}} of mode 0600"
        raise ConfigError("expected a reference, not the secret itself", where=key, hint=hint)
    if key == "notify.email":
        given = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        for one in given:
            if isinstance(one, str) and not is_address(one):
                raise ConfigError(f"{one!r} is no address", where=key, hint="name@example.org")
    return _valid(key, value)


def _valid(key: str, value: Any) -> Any:
    """Return the value of a key as ``experiment.yaml`` would hold it. Raises ConfigError."""
    above, _, name = key.rpartition(".")
    model = problems.model_at(above)
    assert model is not None, key
    field = model.model_fields[name]
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    adapter: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(strict=True))
    try:
        return adapter.dump_python(adapter.validate_python(value))
    except ValidationError as error:
        what = "; ".join(item["msg"] for item in error.errors(include_url=False))
        raise ConfigError(
            f"invalid value {value!r}: {what}", where=key, hint=problems.explain_field(key)
        ) from None
