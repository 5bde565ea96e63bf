"""``policy impact``: what a source has reached, as where its owner withdraws it."""

from __future__ import annotations

import click

from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import UsageError
from hpcdet.policy.provenance.source_manifests import SOURCE_ID
from hpcdet.read.lookup.impact import ImpactView

_REACHED = (
    Column("EXPERIMENT", "experiment"),
    Column("TRIAL", "trial", right=True),
    Column("LAYERS", "layers"),
    Column("CHECKPOINTS", lambda row: len(row.checkpoints), right=True),
    Column("LANES ONLY", "lane_only"),
    Column("HEIRS", "heirs"),
    Column("VERSIONS", "versions"),
    Column("LAST CLEAN", "last_clean"),
    Column("NEWEST", "checkpoint", wide=True),
)


@click.command("impact")
@click.argument("source")
@output("policy.impact", ImpactView)
def impact(out: Output, source: str) -> None:
    """The reach of a source over all experiments: checkpoints, layers, heirs, and model versions.

    It says what was exposed to the source, as checkpoints record it. Where lanes alone were, under
    assurance isolated, removing them removes the source; elsewhere go back to the last clean one.

    \b
    Example: hpcdet policy impact hosp-a -o json
    """
    from hpcdet.read.lookup import find
    from hpcdet.read.lookup.impact import impact as reached
    from hpcdet.registry.versions_beside_trials import with_versions

    if not SOURCE_ID.fullmatch(source):
        hint = "small letters, digits, and . _ -"
        raise UsageError("it is no id of a source", where=source, hint=hint)
    experiments = find.experiments(settings().root)
    found = with_versions(
        settings().registry, source, lambda known: reached(experiments, source, known)
    )
    empty = f"no checkpoint was exposed to {source}"
    out.emit(found.items, _REACHED, warnings=found.warnings, key="checkpoint", empty=empty)
