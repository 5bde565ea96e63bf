"""``schedule``: the hyperparameters of a model over the length of its training."""

from __future__ import annotations

import click

from hpcdet.cli.frame.ids import id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.read.experiment import gather
from hpcdet.read.lookup import find, lineage

COLUMNS = (
    Column("TRIAL", "trial", right=True),
    Column("FROM", "from_", right=True),
    Column("TO", "to", right=True),
    Column("UNIT", "unit"),
    Column("HYPERPARAMETERS", "hyperparameters", fold=True),
    Column("CHECKPOINT", "checkpoint", wide=True),
    Column("SEED", "seed", wide=True, right=True),
)


@click.command("schedule", short_help="What a trial was trained with, its parents included.")
@id_argument()
@click.option("--config", "as_config", is_flag=True, help="As YAML, to train it again alone.")
@output("schedule", lineage.StretchView)
def schedule_command(out: Output, id: str, as_config: bool) -> None:
    """Hyperparameters of the best trial (or of ID/3) and its parents, by length of training.

    --config writes keys that take the place of those of the experiment's config: one model is
    trained through the same hyperparameters, and ends with the same bits.

    \b
    Examples: hpcdet schedule digits-7f3a
              hpcdet schedule digits-7f3a/9 --config
    """
    found = find.reference(id, settings().root)
    gathered = gather.gather(found.paths)
    rows = lineage.chain(gathered, found.trial or lineage.best_trial(gathered))
    if as_config:
        import yaml

        text = yaml.safe_dump(lineage.config(rows, gathered), sort_keys=False, allow_unicode=True)
        click.echo(text, nl=False)
        return
    out.emit(rows, COLUMNS, key="trial")
