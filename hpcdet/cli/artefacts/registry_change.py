"""``registry``: verbs that add versions and change models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from hpcdet import units
from hpcdet.cli.artefacts import model_arguments, named_checkpoints
from hpcdet.cli.artefacts.model_arguments import COLUMNS
from hpcdet.cli.frame.output import Output, output
from hpcdet.cli.frame.progress import busy
from hpcdet.cli.frame.settings import confirm, settings
from hpcdet.errors import UsageError
from hpcdet.read.lookup import find
from hpcdet.registry import registered_models, registry_changes, version_views
from hpcdet.registry.model_names import ModelReference
from hpcdet.registry.version_views import VersionView

_NO_VERSION = "MODEL:VERSION"


@click.command("add", short_help="Make a checkpoint the next version of a model.")
@model_arguments.name_argument()
@named_checkpoints.chosen_options()
@click.option("--version", "semantic", default="", metavar="1.4.0", help="Its semantic version.")
@output("registry.add", VersionView)
def add(out: Output, model: str, what: str, step: str | None, which: str, semantic: str) -> None:
    """Make a checkpoint the next version of a model, which is made if there is none.

    Its data are linked where the registry is yours alone, else copied; code, config, provenance and
    ledgers are copied beside it. All of it is read again and verified. Retention, ckpt rm and rm
    leave it alone.

    \b
    Examples: hpcdet registry add digits digits-7f3a --best --version 1.4.0
              hpcdet registry add digits digits-7f3a/3 300
    """
    from hpcdet.registry import add_version  # numpy, and all that ledgers need

    out.expect()
    folder = named_checkpoints.one(what, step, which)
    found = find.reference(str(folder), settings().root)
    source = add_version.source_of(found.paths, found.trial, folder)
    with busy(f"adding {folder.name} to {model}"):
        made = add_version.add(settings().registry, model, source, semantic)
    if doubt := made.record.governance.get("doubt"):
        settings().warn(f"{made.name}: NOT VERIFIED: {doubt}")
    out.emit([version_views.view(made)], COLUMNS)


@click.command("alias", short_help="Give a version an alias.")
@model_arguments.reference_argument(_NO_VERSION)
@click.argument("alias")
@output("registry.alias", VersionView)
def alias(out: Output, reference: ModelReference, alias: str) -> None:
    """Give a version an alias; the version that had it loses it.

    \b
    Example: hpcdet registry alias digits:3 production
    """
    out.expect()
    reference = registered_models.numbered(settings().registry, reference)
    after = registry_changes.set_alias(settings().registry, reference, alias)
    out.emit(model_arguments.shown(after, reference.number), COLUMNS)


@click.command("unalias")
@model_arguments.reference_argument("MODEL@ALIAS")
@output("registry.unalias", VersionView)
def unalias(out: Output, reference: ModelReference) -> None:
    """Take an alias away.

    \b
    Example: hpcdet registry unalias digits@production
    """
    if not reference.at:
        raise UsageError("no alias is named", where=str(reference), hint=f"{reference.name}@ALIAS")
    out.expect()
    number = registered_models.version(settings().registry, reference).number
    after = registry_changes.remove_alias(settings().registry, reference.name, reference.at)
    out.emit(model_arguments.shown(after, number), COLUMNS)


@click.command("label", short_help="Add labels to a version, or remove them.")
@model_arguments.reference_argument()
@click.option("--add", "add", multiple=True, metavar="LABEL", help="Add it (repeatable).")
@click.option("--rm", "rm", multiple=True, metavar="LABEL", help="Remove it (repeatable).")
@output("registry.label", VersionView)
def label(out: Output, reference: ModelReference, add: Sequence[str], rm: Sequence[str]) -> None:
    """Add labels to a version or remove them; without a version, those of the model.

    \b
    Example: hpcdet registry label digits:3 --add paper --rm draft
    """
    if not add and not rm:
        raise UsageError("no label given", hint="--add LABEL or --rm LABEL")
    out.expect()
    reference = registered_models.numbered(settings().registry, reference)
    after = registry_changes.label(settings().registry, reference, add, rm)
    out.emit(model_arguments.shown(after, reference.number), COLUMNS)


@click.command("note", short_help="Write a note on a version.")
@model_arguments.reference_argument()
@click.argument("text")
@output("registry.note", VersionView)
def note(out: Output, reference: ModelReference, text: str) -> None:
    """Write a note on a version; without a version, on the model.

    \b
    Example: hpcdet registry note digits:3 "0.2 points below the paper"
    """
    out.expect()
    reference = registered_models.numbered(settings().registry, reference)
    after = registry_changes.note(settings().registry, reference, text)
    out.emit(model_arguments.shown(after, reference.number), COLUMNS)


@click.command("archive", short_help="Hide a version, or show it again.")
@model_arguments.reference_argument()
@click.option("--undo", is_flag=True, help="Show it again.")
@output("registry.archive", VersionView)
def archive(out: Output, reference: ModelReference, undo: bool) -> None:
    """Hide a version from lists, ranges and the newest; without a version, the whole model.

    It keeps its files and its number. A version with an alias is not hidden.

    \b
    Example: hpcdet registry archive digits:1
    """
    out.expect()
    reference = registered_models.numbered(settings().registry, reference)
    after = registry_changes.archive(settings().registry, reference, undo)
    out.emit(model_arguments.shown(after, reference.number), COLUMNS)


@click.command("rm", short_help="Remove a version with its files.")
@model_arguments.reference_argument()
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be removed.")
@output("registry.rm", VersionView)
def rm(out: Output, reference: ModelReference, dry_run: bool) -> None:
    """Remove a version with its files; without a version, all of the model.

    A version with an alias is not removed. Numbers and semantic versions are never used again.

    \b
    Example: hpcdet registry rm digits:1 -n
    """
    out.expect()
    reference = registered_models.numbered(settings().registry, reference)
    model = registered_models.model(settings().registry, reference.name)
    doomed = model.there if reference.whole else [model.find(reference)]
    registry_changes.refuse_removal(model, [one.number for one in doomed])
    listed = version_views.versions(settings().registry, reference.name)
    numbers = {one.number for one in doomed}
    rows = [row for row in listed.items if row.version in numbers]
    if not dry_run:
        many = units.counted(len(doomed), "version")
        total = units.size(sum(row.bytes for row in rows))
        confirm(f"remove {many} of {model.name} ({total}) for good?")
        registry_changes.remove(settings().registry, reference)
        rows = [replace(row, state="removed") for row in rows]
    out.emit(rows, COLUMNS)


def add_to(group: click.Group) -> None:
    """Add these verbs to the group."""
    for command in (add, alias, unalias, label, note, archive, rm):
        group.add_command(command)
