"""``import``: experiments and configs of other platforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdet import units
from hpcdet.cli.artefacts import reading
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.progress import busy
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import ConfigError, UsageError, refused
from hpcdet.store.fs import files

if TYPE_CHECKING:
    from hpcdet.interop.imported.ended_experiment import EndedExperiment
    from hpcdet.interop.imported.foreign import ForeignExperiment

COLUMNS = (
    Column("ID", "id"),
    Column("FROM", lambda row: f"{row.platform} {row.number}"),
    Column("STATE", "state", cut=False),
    Column("TRIALS", "trials", right=True),
    Column("CHECKPOINTS", "checkpoints", right=True),
    Column("WHAT", "what", cut=False),
)
_EXISTING = click.Path(path_type=Path, exists=True)


@dataclass(frozen=True)
class ImportedView:
    """An experiment that was imported."""

    id: str
    """Its id here, the same at each import."""
    platform: str
    """Where it is from: ``Determined``."""
    number: int
    """Its id there."""
    state: str
    """Its state here: it has ended."""
    trials: int
    """Number of its trials."""
    checkpoints: int
    """Number of the checkpoints whose files were copied."""
    missing_trials: list[int]
    """Ids of trials of which the files say nothing."""
    what: str
    """What was done: ``imported``, ``imported again``, ``was there``, or what would be."""
    path: str
    """Its folder."""


@click.group("import", short_help="Take over experiments of other platforms.")
def import_command() -> None:
    """Experiments of other platforms as experiments that have ended, and their configs.

    \b
    Example: hpcdet import determined 12.json 12-trials.json
    """


@import_command.command("determined")
@click.argument("sources", metavar="FILE...", nargs=-1, required=True, type=_EXISTING)
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Determined's checkpoint storage: copy the checkpoints that are in it.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be imported.")
@output("import.determined", ImportedView)
def determined(
    out: Output, sources: Sequence[Path], checkpoints: Path | None, dry_run: bool
) -> None:
    """Import experiments of Determined from the JSON of its command line.

    FILE has the output of 'det experiment describe ID --json', of 'det trial describe TRIAL --json
    --metrics' for each trial, or of both in lists. Times and steps stay; the experiments have
    ended, and all reading verbs work on them. What was imported before is replaced if the files
    say something else, else left alone.

    \b
    Examples: det experiment describe 12 --json > 12.json
              det trial describe 101 --json --metrics > 12-101.json
              hpcdet import determined 12.json 12-*.json --checkpoints /ckpts
    """
    from hpcdet.interop.imported import determined_json
    from hpcdet.interop.imported.ended_experiment import EndedExperiment

    out.expect()
    with busy(f"reading {len(sources)} file{'s' if len(sources) > 1 else ''}"):
        found = determined_json.read(sources)
    if not found:
        raise ConfigError(
            "the files have trials, and not their experiment",
            where=str(sources[0]),
            hint="add what this prints: det experiment describe ID --json",
        )
    for one in found:
        _refuse_without_trials(one, sources[0])
    names = tuple(source.name for source in sources)
    rows = []
    for one in found:
        ended = EndedExperiment(one, settings().root.absolute(), names)
        rows.append(_one(ended, checkpoints, dry_run))
    out.emit(rows, COLUMNS, key="id")


def _refuse_without_trials(one: ForeignExperiment, source: Path) -> None:
    """Refuse an experiment of which there are no trials; warn where some are missing.

    Raises:
        ConfigError: there is none, and there were some.
    """
    if one.missing and not one.trials:
        several = " ".join(map(str, one.missing[:20]))
        raise ConfigError(
            f"experiment {one.id} has {units.counted(len(one.missing), 'trial')}, the files none",
            where=str(source),
            hint="`det experiment describe --json` does not print trials. Add those files:\n"
            f"for t in {several}; do det trial describe $t --json --metrics > {one.id}-$t.json; "
            "done",
        )
    if one.missing:
        listed = ", ".join(map(str, one.missing[:20]))
        settings().warn(f"experiment {one.id}: the files lack its trials {listed}")


def _one(ended: EndedExperiment, storage: Path | None, dry_run: bool) -> ImportedView:
    before = ended.target.root.exists()
    pairs = [*ended.places(storage.absolute())] if storage else []
    left = ended.there(place for _, place in pairs)
    what = "was there" if left else "imported again" if before else "imported"
    if dry_run and not left:
        what = f"would be {what}"
    if not dry_run and not left:
        try:
            ended.begin()
            saved = _copied(ended, pairs)
            with busy(f"importing {ended.target.id}"):
                ended.finish(saved)
        except OSError as error:
            raise refused(error, str(ended.target.root)) from error
        finally:
            ended.abandon()
    foreign = ended.foreign
    return ImportedView(
        id=ended.target.id,
        platform=foreign.platform,
        number=foreign.id,
        state=foreign.state,
        trials=len(foreign.trials),
        checkpoints=len(pairs),
        missing_trials=list(foreign.missing),
        what=what,
        path=str(ended.target.root),
    )


def _copied(
    ended: EndedExperiment, pairs: Sequence[tuple[Path, Path]]
) -> dict[str, dict[str, Any]]:
    if not pairs:
        return {}
    rows = reading.every(
        f"copying {units.counted(len(pairs), 'checkpoint')} of {ended.target.id}",
        len(pairs),
        "import-folders",
        *(path for pair in pairs for path in pair),
    )
    return {str(row["path"]): row for row in rows}


@import_command.command("determined-config")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write it there, where nothing may be yet [standard output].",
)
@click.option(
    "--ignore", "ignored", multiple=True, metavar="KEY", help="A key that counts for nothing."
)
def determined_config(file: Path, to: Path | None, ignored: Sequence[str]) -> None:
    """Rewrite a config of Determined with hpcdet's keys, and say what each change is.

    hpcdet takes Determined's configs as they are, too. Exit 4 if a key would change the result
    and hpcdet does not have it; the message names each, and what to write instead.

    \b
    Example: hpcdet import determined-config adaptive.yaml --to experiment.yaml
    """
    from hpcdet.config.load import rewritten

    text = rewritten.config(file, ignored)
    if to is None:
        click.echo(text, nl=False)
    elif not files.write_once(to, text.encode()):
        raise UsageError("the file exists", where=str(to), hint="name another one")
    else:
        click.echo(str(to))
