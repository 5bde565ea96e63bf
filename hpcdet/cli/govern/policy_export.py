"""``policy export``: a governed model's account in formats of others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdet.cli.artefacts import named_checkpoints
from hpcdet.cli.frame.ids import id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import IntegrityError, NotFound, UsageError, refused
from hpcdet.store.fs import files

if TYPE_CHECKING:  # numpy, and all that views need
    from hpcdet.read.exports.governed_model import GovernedModel

FORMATS = ("in-toto", "cyclonedx", "model-signing", "training-content")
SIGNED = ("in-toto", "model-signing")

_WRITTEN = (
    Column("FORMAT", "format", cut=False),
    Column("MODEL", "model"),
    Column("SIGNED", "signed"),
    Column("BYTES", "bytes", right=True),
    Column("TO", "path"),
)


@dataclass(frozen=True)
class ExportView:
    """A file that was written about a governed model."""

    format: str
    """``in-toto``, ``cyclonedx``, ``model-signing`` or ``training-content``."""
    model: str
    """The model: ``EXPERIMENT/TRIAL@STEP``."""
    checkpoint: str
    """The folder of its checkpoint."""
    signed: bool
    """True if it is signed."""
    bytes: int
    """The file's size."""
    path: str
    """The file."""


@click.command("export")
@id_argument()
@click.argument("form", metavar="FORMAT", type=click.Choice(FORMATS))
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The file to write; one that is there is never overwritten.",
)
@click.option(
    "--checkpoint",
    default="",
    metavar="STEP",
    help="Not the best one: by its step, name or path, or model:NAME:3.",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Sign with it: Ed25519 for in-toto, an elliptic-curve key in PEM for model-signing.",
)
@output("policy.export", ExportView)
def export(out: Output, id: str, form: str, to: Path, checkpoint: str, key: Path | None) -> None:
    """Write what is known of a governed model, in a format of others.

    in-toto: a statement on the files of the best checkpoint. cyclonedx: a bill of materials, with
    data sets and a model card. model-signing: the OpenSSF manifest of the files, or with --key the
    bundle. training-content: a summary of the data, as Markdown; it is no legal advice.

    The checkpoint is verified first; nothing of the experiment is run or changed.

    \b
    Examples: hpcdet policy export digits-7f3a in-toto --to d.json --key me.key
              hpcdet policy export digits-7f3a/2 cyclonedx --to digits.cdx.json
    """
    from hpcdet.read.experiment.gather import gather
    from hpcdet.read.exports.governed_model import governed_model
    from hpcdet.read.lookup import find

    if key is not None and form not in SIGNED:
        hint = f"these are: {', '.join(SIGNED)}; or sign the file by a program of yours"
        raise UsageError(f"{form} is not signed", where="--key", hint=hint)
    _refuse_taken(to)
    out.expect()
    found = find.reference(id, settings().root)
    if found.attempt:
        hint = f"{found.paths.id}/{found.trial}"
        raise UsageError("an attempt has no checkpoints of its own", where=id, hint=hint)
    trial, name = named_checkpoints.own_name(checkpoint, found.paths, found.trial)
    model = governed_model(gather(found.paths), trial, name)
    _refuse_damaged(model.folder)
    data = _bytes(form, model, key)
    try:
        if not files.write_once(to, data):
            _refuse_taken(to)
    except OSError as error:
        raise refused(error, str(to)) from error
    row = ExportView(form, model.called, str(model.folder), key is not None, len(data), str(to))
    out.emit([row], _WRITTEN, key="path")


def _bytes(form: str, model: GovernedModel, key: Path | None) -> bytes:
    from hpcdet.policy.keys import key_files
    from hpcdet.read.exports import attestation, bill_of_materials, signed_model, training_content

    match form:
        case "in-toto":
            return attestation.to_bytes(model, None if key is None else key_files.read(key))
        case "model-signing":
            return signed_model.to_bytes(model, key)
        case "cyclonedx":
            return bill_of_materials.to_bytes(model, files.now())
        case _:
            return training_content.to_bytes(model, files.now())


def _refuse_taken(to: Path) -> None:
    if to.is_symlink() or to.exists():
        raise UsageError("it is there already", where=str(to), hint="take another name")
    if not to.absolute().parent.is_dir():
        raise NotFound("its folder is not there", where=str(to), hint="make it, or take another")


def _refuse_damaged(folder: Path) -> None:
    from hpcdet.cli.artefacts import reading

    [row] = reading.run("verify", [folder])
    if row.error:
        hint = "export another one: --checkpoint STEP; hpcdet ckpt verify checks all of them"
        raise IntegrityError(
            f"the checkpoint is {row.state}: {row.error}", where=row.path, hint=hint
        )
