"""``doctor``: whether this machine, its file system and its scheduler will do."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import click

from hpcdet.cli import words
from hpcdet.cli.output import Column, Output, output
from hpcdet.cli.settings import settings
from hpcdet.errors import HpcdetError
from hpcdet.jobs import checks
from hpcdet.jobs.checks import Finding
from hpcdet.store import files

COLUMNS = (Column("", "level"), Column("WHAT", "what"), Column("HINT", "hint"))

_NEEDED = ("torch", "h5py", "numpy", "blake3", "click", "jinja2", "pydantic", "yaml")
_SKEW_S = 5.0


@click.command("doctor", short_help="Check this machine, its scheduler and file system.")
@click.option("--site", "site_name", metavar="NAME", help="Site [$HPCDET_SITE, else detected].")
@click.option("--strict", is_flag=True, help="Warnings count as failures.")
@output("doctor")
def doctor_command(out: Output, site_name: str | None, strict: bool) -> None:
    """Check interpreter, packages, file system and scheduler. Exit 1 if something will not do.

    \b
    Example: hpcdet doctor --site generic-slurm
    """
    findings = [*_python(), *_guarded(lambda: _folder(settings().root))]
    findings += _guarded(lambda: _site(site_name))
    out.emit([asdict(finding) for finding in findings], COLUMNS, key="what")
    bad = ("error", "warning") if strict else ("error",)
    wrong = [finding for finding in findings if finding.level in bad]
    if wrong:
        raise HpcdetError(f"{len(wrong)} findings", hint=wrong[0].hint or wrong[0].what)


def _guarded(look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What one look finds; that it fails is a finding, too."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except HpcdetError as error:
        found.append(Finding("error", str(error).splitlines()[0], error.hint))
    except OSError as error:
        found.append(Finding("error", f"{error.filename or ''}: {error.strerror}"))
    return found


def _python() -> Iterator[Finding]:
    version = sys.version.split()[0]
    yield Finding("ok", f"Python {version}, {sys.executable}")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        hint = "install hpcdet anew: python -m pip install hpcdet"
        yield Finding("error", f"packages are missing: {', '.join(missing)}", hint)
    else:
        yield Finding("ok", "every package that hpcdet needs is installed")


def _folder(root: Path) -> Iterator[Finding]:
    """Whether the file system keeps the three promises that everything rests on."""
    place = next(path for path in (root, *root.parents) if path.exists())
    folder = Path(tempfile.mkdtemp(prefix=".hpcdet-doctor-", dir=place))
    try:
        once, twice = (files.write_once(folder / "once", text) for text in (b"1", b"2"))
        if not once or twice or (folder / "once").read_bytes() != b"1":
            yield Finding("error", f"{place}: exclusive creation by link does not work")
        files.replace(folder / "once", b"3")
        if (folder / "once").read_bytes() != b"3":
            yield Finding("error", f"{place}: replacing a file by rename does not work")
        skew = (folder / "once").stat().st_mtime - time.time()
    finally:
        shutil.rmtree(folder)
    yield Finding("ok", f"{place}: files can be created once and replaced whole")
    if abs(skew) > _SKEW_S:
        hint = "ages in hpcdet status are off by this much"
        yield Finding("warning", f"the file server's clock is {skew:+.0f} s off", hint)
    free = os.statvfs(place)
    yield Finding("ok", f"{place}: {words.size(free.f_bavail * free.f_frsize)} free")
    if free.f_files and free.f_favail < 10_000:
        yield Finding("warning", f"{place}: {free.f_favail} inodes are left", "a trial needs 60")


def _site(name: str | None) -> Iterator[Finding]:
    site = settings().site(name)
    yield Finding("ok", f"site {site.name}: {site.reason}")
    if site.fallback and (sign := checks.login_node()):
        hint = "name a site with a scheduler by --site or HPCDET_SITE"
        yield Finding("warning", f"this looks like a login node ({sign}) without a scheduler", hint)
    yield from checks.site_findings(site)
