"""Global flags, which may stand before or after the verb."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdet.errors import NotFound, UsageError
from hpcdet.read.lookup.escapes import escaped

if TYPE_CHECKING:
    from hpcdet.site import Site

ARGV = "hpcdet.argv"
"""The words of the command line, in the metadata of a command's context."""


@dataclass
class Settings:
    """The values of the global flags.

    Attributes:
        given_root: folder that holds experiments, from ``-C``; None without it.
        color: ``auto``, ``always`` or ``never``.
        yes: answer all questions with yes.
        profile: the site of every verb that needs one and has no ``--site``.
    """

    given_root: Path | None = None
    quiet: bool = False
    verbose: int = 0
    debug: bool = False
    color: str = "auto"
    utc: bool = False
    yes: bool = False
    profile: str | None = None

    def site(self, name: str | None = None, where: str = "") -> Site:
        """Return the site of that name, else that of ``--profile``, else the one that fits.

        Args:
            where: what names it, for people.

        Raises:
            ConfigError: there is none of that name, or its file is wrong.
        """
        from hpcdet.site_files import load_site

        return load_site.load(name or self.profile, where=where)

    @property
    def root(self) -> Path:
        """The folder that holds experiments, as ``wanted_root``.

        Raises:
            NotFound: that of ``-C`` does not exist; any other may be made by the first experiment.
        """
        self._refuse_absent()
        return self.wanted_root

    def _refuse_absent(self) -> None:
        given = self.given_root
        if given is not None and not given.is_dir():
            hint = "-C names the folder that holds experiments"
            raise NotFound("no such folder", where=f"-C {given}", hint=hint)

    @property
    def wanted_root(self) -> Path:
        """The folder for experiments: ``-C``, ``$HPCDET_ROOT``, the site's, or here."""
        from hpcdet.site_files import roots

        return roots.experiments(self.given_root, self.profile)

    def root_at(self, site: Site) -> Path:
        """Return the folder for experiments at a site: ``-C``, ``$HPCDET_ROOT`` or the site's."""
        from hpcdet.site_files import roots

        return roots.at(site, self.given_root)

    @property
    def registry(self) -> Path:
        """The registry of models: ``$HPCDET_REGISTRY``, the site's, or in the folder ``root``.

        Raises:
            NotFound: the folder of ``-C`` does not exist.
        """
        from hpcdet.registry import registry_place

        self._refuse_absent()
        if os.environ.get(registry_place.VARIABLE):
            return registry_place.folder(Path())
        return self.registry_at(self.site())

    def registry_at(self, site: Site) -> Path:
        """Return the registry of models at a site."""
        from hpcdet.registry import registry_place
        from hpcdet.site import folders

        return registry_place.folder(self.root_at(site), folders.registry(site))

    @property
    def live(self) -> bool:
        """True if standard error is a terminal whose lines may be redrawn."""
        dumb = os.environ.get("TERM") == "dumb" or os.environ.get("HPCDET_A11Y") == "1"
        return sys.stderr.isatty() and not dumb and not self.quiet

    def colored(self, stream: Any) -> bool:
        """True if text for ``stream`` may carry colour (``NO_COLOR`` is honoured)."""
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
            return False
        return bool(stream.isatty())

    def note(self, text: str) -> None:
        """Print a line for people on standard error, unless ``--quiet``."""
        if not self.quiet:
            click.echo(escaped(text), err=True)

    def warn(self, text: str) -> None:
        """Print a warning on standard error."""
        click.echo(escaped(f"warning: {text}"), err=True)


def settings() -> Settings:
    """Return the settings of the running command."""
    return click.get_current_context().find_root().ensure_object(_Holder).settings


class _Holder:
    """The root context's object, created when the first flag or command needs it."""

    def __init__(self) -> None:
        self.settings = Settings()


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None:
            settings = ctx.find_root().ensure_object(_Holder).settings
            setattr(settings, name, value.absolute() if isinstance(value, Path) else value)

    return callback


def global_options(hidden: bool) -> list[click.Option]:
    """Return new global options for one command; on verbs they are accepted but hidden."""

    def option(*names: str, stores: str, **more: Any) -> click.Option:
        return click.Option(
            names, expose_value=False, callback=_store(stores), hidden=hidden, default=None, **more
        )

    return [
        option(
            "-C",
            "--root",
            stores="given_root",
            type=click.Path(path_type=Path, file_okay=False, readable=False),
            help="Folder that holds experiments [$HPCDET_ROOT].",
        ),
        option("--profile", stores="profile", metavar="SITE", help="The site: --site of any verb."),
        option("-q", "--quiet", stores="quiet", flag_value=True, help="Say less."),
        option("-v", "--verbose", stores="verbose", flag_value=1, help="Say more."),
        option("--debug", stores="debug", flag_value=True, help="Show tracebacks."),
        option(
            "--color",
            stores="color",
            type=click.Choice(["auto", "always", "never"]),
            help="Colour [auto]; NO_COLOR is honoured.",
        ),
        option("--utc", stores="utc", flag_value=True, help="Times in UTC, not local."),
        option("-y", "--yes", stores="yes", flag_value=True, help="Answer questions with yes."),
    ]


def confirm(question: str) -> None:
    """Continue only if the user agrees (``-y``, or yes on a terminal).

    Raises:
        UsageError: standard input is no terminal, or the answer is no.
    """
    if settings().yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} needs confirmation, and there is no terminal", hint="add -y")
    if not click.confirm(question, err=True):
        raise UsageError("not confirmed; nothing was done")
