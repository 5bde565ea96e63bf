"""``registry``: verbs that look at registered models, verify and copy them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from hpcdet import units
from hpcdet.cli.artefacts import model_arguments, registry_change
from hpcdet.cli.artefacts.model_arguments import COLUMNS
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.progress import busy
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.text_format import facts, when
from hpcdet.errors import IntegrityError, UsageError
from hpcdet.read.lookup.escapes import escaped
from hpcdet.read.views.items import text
from hpcdet.registry import model_names, registered_models, version_files, version_views
from hpcdet.registry.model_names import ModelReference
from hpcdet.registry.registered_models import folder_of
from hpcdet.registry.version_check import VersionCheckView, all_of, check, everything
from hpcdet.registry.version_views import Condition, VersionView
from hpcdet.store.fs import files

_CHECKED = (
    Column("MODEL", "model"),
    Column("VERSION", "version", right=True),
    Column("STATE", "state", cut=False),
    Column("GOVERNED", "governed"),
    Column("ERRORS", lambda row: "; ".join(row.errors), fold=True),
    Column("PATH", "path", wide=True),
)


@click.group("registry", short_help="Named models with versions, aliases and cards.")
def registry_command() -> None:
    """Registered models: immutable versions, aliases, labels, notes, cards.

    A version holds a checkpoint, linked or copied, and the code, config and provenance that made
    it: it stays whole when the experiment goes. The registry is $HPCDET_REGISTRY, else the site's
    paths.registry, else ROOT/registry.

    \b
    digits:3            version 3 (of the model digits)
    digits@production   the version that has the alias
    digits@^1.4         the greatest semantic version 1.x from 1.4.0 on
    digits              the newest version

    With the prefix model: these stand wherever a checkpoint may: ckpt, resume --from,
    policy export --checkpoint, searcher.begin_from.

    \b
    Examples: hpcdet registry add digits digits-7f3a --best --version 1.4.0
              hpcdet registry alias digits:3 production
              hpcdet registry best digits --metric accuracy
              hpcdet ckpt export model:digits@production -o digits.safetensors
    """


registry_change.add_to(registry_command)


@registry_command.command("ls")
@model_arguments.conditions()
@click.option("--archived", is_flag=True, help="Archived models and versions, too.")
@output("registry.ls", VersionView)
def ls(out: Output, sort: str, wheres: Sequence[str], archived: bool) -> None:
    """The newest version of each model that fits.

    \b
    Examples: hpcdet registry ls --sort -accuracy --where hidden=64
              hpcdet registry ls --where labels=paper -o json
    """
    conditions = [Condition.of(one) for one in wheres]
    found = version_views.newest(settings().registry, archived, conditions)
    rows = version_views.ordered(found.items, sort) if sort else found.items
    where = f"in {settings().registry}"
    empty = f"no model {where} fits" if wheres else f"no models {where}"
    out.emit(rows, COLUMNS, warnings=found.warnings, empty=empty)


@registry_command.command("versions")
@model_arguments.name_argument()
@model_arguments.conditions()
@output("registry.versions", VersionView)
def versions(out: Output, model: str, sort: str, wheres: Sequence[str]) -> None:
    """All versions of a model, archived ones among them.

    \b
    Example: hpcdet registry versions digits --sort validation_loss
    """
    conditions = [Condition.of(one) for one in wheres]
    found = version_views.versions(settings().registry, model)
    rows = version_views.fitting(found.items, conditions)
    rows = version_views.ordered(rows, sort) if sort else rows
    out.emit(rows, COLUMNS[1:], warnings=found.warnings, empty="no version fits")


@registry_command.command("show")
@model_arguments.reference_argument()
@output("registry.show", VersionView)
def show(out: Output, reference: ModelReference) -> None:
    """Everything recorded of a version, and how to use it.

    \b
    Example: hpcdet registry show digits@production
    """
    row = version_views.view(registered_models.version(settings().registry, reference))
    if not out.for_people or out.fields:
        out.emit([row], COLUMNS)
        return
    click.echo(facts((name, escaped(one)) for name, one in _facts(row)))


def _facts(row: VersionView) -> Iterator[tuple[str, str]]:
    """Yield what people are shown of a version."""
    yield "version", " ".join(filter(None, [row.id, row.semantic]))
    yield "state", row.state
    yield "aliases", text(row.aliases)
    yield "labels", text(row.labels)
    yield "trained in", f"{row.experiment}/{row.trial}, step {row.step}"
    yield "metrics", text(row.metrics)
    yield "hyperparameters", text(row.hyperparameters)
    yield "added", f"{when(row.created)} by {row.by}"
    yield "size", units.size(row.bytes)
    yield "digest", row.digest
    yield "commit", text(row.capsule.get("commit", ""))
    if row.governance:
        yield "policy", text(row.governance.get("policy_digest", ""))
        yield "ledger", text(row.governance.get("ledger"))
    for note in row.notes:
        yield "note", f"{note.text} ({note.by}, {when(note.at)})"
    yield "path", row.path
    yield "begin from it", f"hpcdet submit CONFIG --set searcher.begin_from={row.id}"


@registry_command.command("best")
@model_arguments.name_argument()
@click.option("--metric", default="", metavar="M", help="[the one its searches compared by].")
@click.option("--smaller/--larger", default=None, help="Which values are better [as searched].")
@output("registry.best", VersionView)
def best(out: Output, model: str, metric: str, smaller: bool | None) -> None:
    """The version of a model with the best value of a metric.

    \b
    Example: hpcdet registry best digits --metric accuracy --larger -o id
    """
    found, _ = version_views.best(settings().registry, model, metric, smaller)
    out.emit([version_views.view(found)], COLUMNS)


@registry_command.command("verify", short_help="Check every byte of versions.")
@click.argument(
    "what", nargs=-1, metavar="[MODEL[:VERSION]]...", shell_complete=model_arguments.complete
)
@output("registry.verify", VersionCheckView)
def verify(out: Output, what: Sequence[str]) -> None:
    """Check every byte of versions; exit 9 if one is not as it was added.

    Of a governed version the policy's digest, the exposure and the ledger's head are compared with
    the manifest and the ledgers that lie beside it. Without arguments all models are checked.

    \b
    Example: hpcdet registry verify digits@production
    """
    registry = settings().registry
    rows: list[VersionCheckView] = []
    if not what:
        with busy(f"verifying all models in {registry}"):
            rows += everything(registry)
    for name in what:
        reference = model_names.reference(name)
        with busy(f"verifying {reference}"):
            if reference.whole:
                rows += all_of(registry, reference.name)
            else:
                model = registered_models.model(registry, reference.name)
                version = registered_models.Version(model, model.find(reference))
                rows.append(check(version))
    out.emit(rows, _CHECKED, key="path", empty="no version is there")
    damaged = [row for row in rows if row.errors]
    if damaged:
        first, many = damaged[0], f"{len(damaged)} of {len(rows)} versions are damaged: "
        raise IntegrityError(
            (many if len(rows) > 1 else "") + first.errors[0],
            where=f"model:{first.model}" + (f":{first.version}" if first.version else ""),
            hint="put it back from a backup, or add it again from its source",
        )


@registry_command.command("get", short_help="Copy a version's checkpoint to a folder of yours.")
@model_arguments.reference_argument()
@click.option(
    "-o", "--out", "to", type=click.Path(path_type=Path), metavar="FOLDER", help="[NAME-VERSION]."
)
def get(reference: ModelReference, to: Path | None) -> None:
    """Copy a version's checkpoint to a folder of yours; every byte is verified.

    \b
    Example: hpcdet registry get digits@production -o ~/digits
    """
    found = registered_models.version(settings().registry, reference)
    target = (to or Path(f"{found.model.name}-{found.number}")).expanduser().absolute()
    root = folder_of(found.model.folder, found.number)
    with busy(f"copying {found.name}"):
        version_files.get(root, found.record.files, found.checkpoint, target)
    click.echo(str(target))


@registry_command.command("card", short_help="A model card for Hugging Face, as Markdown.")
@model_arguments.reference_argument()
@click.option("-o", "--out", "to", type=click.Path(path_type=Path), metavar="FILE", help="[print].")
def card(reference: ModelReference, to: Path | None) -> None:
    """A model card: Markdown with Hugging Face's metadata block, from the record alone.

    Labels such as license=mit and language=en go into the block.

    \b
    Example: hpcdet registry card digits@production -o README.md
    """
    from hpcdet.registry.model_card import card as made

    written = made(registered_models.version(settings().registry, reference))
    if to is None:
        click.echo(written, nl=False)
        return
    if not files.write_once(to, written.encode()):
        raise UsageError("the file exists already", where=str(to))
    click.echo(str(to))
