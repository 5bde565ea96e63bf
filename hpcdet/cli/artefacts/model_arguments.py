"""Arguments that name models and versions, with completion from the registry's events."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import click

from hpcdet.cli.frame.output import Column
from hpcdet.cli.frame.text_format import when
from hpcdet.errors import HpcdetError
from hpcdet.registry import model_names, registered_models, registry_place
from hpcdet.registry.model_names import model_name
from hpcdet.registry.version_views import VersionView, view
from hpcdet.store.folder import home
from hpcdet.store.folder.names import MODEL_PREFIX
from hpcdet.units import size

COLUMNS = (
    Column("MODEL", "model"),
    Column("VERSION", "version", right=True),
    Column("SEMANTIC", "semantic", cut=False, sparse=True),
    Column("ALIASES", "aliases", sparse=True),
    Column("STATE", lambda row: row.state.replace("active", ""), cut=False, sparse=True),
    Column("METRICS", "metrics", fold=True),
    Column("EXPERIMENT", lambda row: f"{row.experiment}/{row.trial}"),
    Column("STEP", "step", right=True, wide=True),
    Column("SIZE", lambda row: size(row.bytes), right=True, wide=True),
    Column("CREATED", lambda row: when(row.created), wide=True),
    Column("BY", "by", wide=True),
    Column("LABELS", "labels", wide=True),
    Column("HYPERPARAMETERS", "hyperparameters", wide=True),
    Column("PATH", "path", wide=True),
)
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return models, and behind ``NAME:`` or ``NAME@`` versions and aliases; no site is asked."""
    registry = registry_place.folder(home.root())
    prefix = MODEL_PREFIX if incomplete.startswith(MODEL_PREFIX) else ""
    plain = incomplete.removeprefix(prefix)
    found: list[str] = []
    with contextlib.suppress(HpcdetError):
        found = registered_models.names(registry)
        for name in [one for one in found if plain.startswith((f"{one}:", f"{one}@"))]:
            model = registered_models.model(registry, name)
            found += [f"{name}:{one.number}" for one in model.there]
            found += [f"{name}@{alias}" for alias in sorted(model.aliases)]
    return [f"{prefix}{one}" for one in found if one.startswith(plain)]


def reference_argument(metavar: str = "MODEL[:VERSION]") -> Decorator:
    """Return the argument ``reference``: a model or a version."""
    return _argument("reference", metavar, model_names.reference)


def name_argument() -> Decorator:
    """Return the argument ``model``: the name of a model."""
    return _argument("model", "MODEL", lambda text: model_name(text.removeprefix(MODEL_PREFIX)))


def _argument(name: str, metavar: str, parse: Callable[[str], Any]) -> Decorator:
    """Return an argument that is parsed once the verb runs, so that its errors are ours."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*args: Any, **more: Any) -> Any:
            return function(*args, **{**more, name: parse(more[name])})

        return click.argument(name, metavar=metavar, shell_complete=complete)(command)

    return decorate


def conditions() -> Decorator:
    """Return the options ``--sort`` and ``--where``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option(
            "--where",
            "wheres",
            multiple=True,
            metavar="KEY=VALUE",
            help="Only those: by a hyperparameter, metric, label or key of -o json (repeatable).",
        )(function)
        return click.option(
            "--sort",
            default="",
            metavar="[-]KEY",
            help="By a metric, hyperparameter or key of -o json; -KEY: downwards.",
        )(function)

    return decorate


def shown(registered: registered_models.RegisteredModel, number: int = 0) -> list[VersionView]:
    """Return the item of a version after a change; without a number, of the newest one."""
    number = number or registered.there[-1].number
    version = registered_models.Version(registered, registered.versions[number])
    return [view(version)]
