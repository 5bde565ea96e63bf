"""Loading of a request: CONFIG, MODEL_DIR, ``--set`` and ``--site`` become config and site."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdet.cli.frame.progress import busy, reading
from hpcdet.cli.frame.settings import settings
from hpcdet.config import api as config
from hpcdet.config.load import load_config
from hpcdet.errors import ConfigError
from hpcdet.jobs.checks import site_checks
from hpcdet.jobs.create import begin_from as origin
from hpcdet.jobs.create import data_files, images, past_results, snapshot
from hpcdet.jobs.create.data_files import DataFiles, DataPath
from hpcdet.jobs.script import lanes, requirements
from hpcdet.jobs.script.environment import fold_defaults
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.request import NodeRequest
from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder import trust
from hpcdet.store.folder.derived_store import KnownDigests
from hpcdet.store.fs import yaml12
from hpcdet.store.trials.history import History
from hpcdet.store.trials.parents import Donation

if TYPE_CHECKING:
    from hpcdet.policy.compiled import CompiledPolicy

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def config_argument() -> Decorator:
    """``CONFIG [MODEL_DIR]``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        path = click.Path(path_type=Path)
        function = click.argument("model_dir", type=path, required=False)(function)
        return click.argument("config_file", type=path, metavar="CONFIG")(function)

    return decorate


_AT_ONCE = 64 << 20
"""Bytes of data that are read before anyone asks what is going on."""
_TEMPLATE = "hpcdet.template"
_IGNORED = "hpcdet.ignored"


def _keep_template(ctx: click.Context, _: click.Parameter, file: Path | None) -> None:
    ctx.meta[_TEMPLATE] = file


def _keep_ignored(ctx: click.Context, _: click.Parameter, keys: tuple[str, ...]) -> None:
    ctx.meta[_IGNORED] = keys


def setting_options() -> Decorator:
    """``--set``, ``--site`` and, for ``request`` alone, ``--template`` and ``--ignore``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option(
            "--template",
            type=click.Path(path_type=Path),
            metavar="FILE",
            expose_value=False,
            callback=_keep_template,
            help="A config that gives values where CONFIG has none.",
        )(function)
        function = click.option(
            "--ignore",
            multiple=True,
            type=click.Choice(config.IGNORABLE),
            expose_value=False,
            callback=_keep_ignored,
            help="A key counts for nothing: without the image, code runs on the host (repeat).",
        )(function)
        function = click.option(
            "--site", "site_name", metavar="NAME", help="Site [$HPCDET_SITE, else detected]."
        )(function)
        return click.option(
            "--set",
            "sets",
            multiple=True,
            metavar="KEY.PATH=VALUE",
            help="Change a value of the config (repeat for more).",
        )(function)

    return decorate


@dataclass(frozen=True)
class SubmitRequest:
    """A config, the code and the site at which a user wants to run them.

    Attributes:
        include: files and folders of the code besides those of ``model_dir``.
    """

    loaded: config.LoadedConfig
    site: Site
    model_dir: Path
    include: tuple[Path, ...] = ()

    @property
    def resolved(self) -> Resolved:
        return self.loaded.config

    @property
    def policy(self) -> CompiledPolicy | None:
        """The policy to train under; None without one."""
        return self.loaded.policy.compiled if self.loaded.policy is not None else None

    @functools.cached_property
    def required(self) -> NodeRequest | None:
        """Return the policy's requirements of nodes, or None. Raises as ``of_policy``."""
        return requirements.of_policy(self.policy, self.site) if self.policy is not None else None

    @property
    def root(self) -> Path:
        return settings().root_at(self.site)

    @functools.cached_property
    def origin(self) -> Donation | None:
        """The checkpoint of ``searcher.begin_from``. Raises as ``origin.look``."""
        return origin.look(self.resolved, self.root, settings().registry_at(self.site))

    @property
    def begun(self) -> int:
        """Length at which all trials begin, in the unit of ``max_length``. Raises as ``origin``.

        0 where they begin from nothing, and where a ``time_metric`` counts: no checkpoint has it.
        """
        asked, found = self.resolved.searcher, self.origin
        if found is None or asked.max_length is None or asked.time_metric is not None:
            return 0
        return int(found.manifest["meta"].get(asked.max_length.unit, 0))

    @functools.cached_property
    def history(self) -> History | None:
        """The results of the experiments in ``searcher.warm_start``. Raises as ``past.collect``."""
        return past_results.collect(self.resolved, self.root)

    def warnings(self, submits: bool = True) -> list[str]:
        """Return the warnings before a submission; with ``submits`` False, before a preview.

        Raises:
            ConfigError: the config can never run at this site.
            Unavailable: the scheduler does not answer, with ``submits``.
        """
        found = site_checks.preflight(
            self.resolved, self.site, self.root, submits=submits, required=self.required
        )
        return [*self.loaded.warnings, *found]

    def with_images(self) -> SubmitRequest:
        """Return the request with its images found or fetched. Raises as ``images.resolved``."""
        if self.loaded.images or self.resolved.environment.image is None:
            return self
        with busy("looking at the image"):
            image, records = images.resolved(self.resolved, self.site, self.loaded.registry)
        loaded = self.loaded.with_value(images.IMAGE, image, self.loaded.origins[images.IMAGE])
        return replace(self, loaded=replace(loaded, images=records))

    def data(self) -> list[DataFiles]:
        """Return the files of ``data.paths``, digested. Raises as ``digested``."""
        found = []
        with KnownDigests() as known:
            for place in self.data_paths:
                names = place.names()
                with reading(place.path, names, _AT_ONCE) as watch:
                    found.append(data_files.digested(place, names, watch, known))
        return found

    @functools.cached_property
    def data_paths(self) -> list[DataPath]:
        """The files that ``data.paths`` names. Raises ConfigError as ``located``."""
        return data_files.located(self.resolved.data, self.model_dir)

    def scan(self) -> list[snapshot.SnapshotEntry]:
        """Return the code that an experiment would get. Raises ConfigError as ``snapshot.scan``."""
        return snapshot.scan(self.model_dir, self.root.resolve(), self.include)

    def warn(self) -> None:
        """Print the warnings of the config alone."""
        for warning in self.loaded.warnings:
            settings().warn(warning)


def request(
    config_file: Path,
    model_dir: Path | None,
    sets: Sequence[str],
    site_name: str | None,
    ask: bool | None = None,
) -> SubmitRequest:
    """Read and check a config at its site.

    Args:
        ask: what the site file leaves open: the cluster, or if False nobody, which is said. None:
            it does not matter here.

    Raises:
        ConfigError: the config, the site or the model folder is wrong.
        NotFound: no such site.
    """
    folder = model_dir or config_file.absolute().parent
    if model_dir is not None and not model_dir.is_dir():
        raise ConfigError("no such model folder", where=str(model_dir))
    document = yaml12.read(config_file)
    asked, named = site_name or settings().profile, document.values.get("site")
    where = "" if asked or not named else f"{document.origin(('site',))}: site"
    chosen = fold_defaults(settings().site(asked or (str(named) if named else None), where))
    if asked and named:
        sets = [*sets, f"site={json.dumps(chosen.name)}"]  # a record must not name the other one
    meta = click.get_current_context().meta
    template: Path | None = meta.get(_TEMPLATE)
    ignored: tuple[str, ...] = meta.get(_IGNORED, ())
    loaded = load_config.check(document, sets, chosen, template, ignored)
    for file in filter(None, (config_file, template)):
        trust.refuse_writable_by_others(file, "config")
    if loaded.config.governance is not None:
        from hpcdet.config.load.enforced import governed  # they bring numpy
        from hpcdet.config.policy.policy_file import read_policy
        from hpcdet.policy.provenance.source_provenance import refuse_incomplete

        policy = read_policy(loaded.config.governance.policy, config_file.absolute().parent)
        refuse_incomplete(policy.compiled, folder)
        loaded = _placed(governed(loaded, policy), policy.compiled, chosen)
    wanted = SubmitRequest(lanes.settled(loaded, chosen), chosen, folder)
    if ask is None:
        return wanted
    facts, pool = opening.of(chosen).facts, wanted.resolved.resources.resource_pool
    settled, assumed = facts.resolved(chosen, pool, ask=ask)
    if assumed:
        settings().note(f"site {chosen.name}: {assumed}")
    return replace(wanted, site=settled.unchained(pool))


def _placed(loaded: config.LoadedConfig, policy: CompiledPolicy, site: Site) -> config.LoadedConfig:
    """Put jobs that name no partition into the one that the policy requires.

    Raises:
        PolicyRefused: P17: the site cannot give what it requires, or the config undoes it.
    """
    required = requirements.of_policy(policy, site)
    if required is None:
        return loaded
    requirements.refuse_undoing(loaded.config, site, required)
    if (partition := required.settings.get("partition")) is None:
        return loaded
    return loaded.with_value("resources.resource_pool", partition, f"policy {policy.name}")
