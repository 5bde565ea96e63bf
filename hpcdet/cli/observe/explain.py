"""``explain``: the causes of an experiment's state, with evidence and the next command."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.ids import called, id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import HpcdetError
from hpcdet.read.experiment import gather
from hpcdet.read.explanation import findings
from hpcdet.read.explanation.finding_view import Commands, FindingView
from hpcdet.read.lookup import find
from hpcdet.read.lookup.escapes import escaped
from hpcdet.store.folder.layout import ExperimentPaths

COLUMNS = (Column("ABOUT", "about"), Column("FINDING", "finding"))


@click.command("explain", short_help="Why it is pending, slow or failed, and what to do.")
@id_argument()
@click.option("--pending", is_flag=True, help="Only why nothing runs.")
@click.option("--failure", is_flag=True, help="Only why something failed.")
@output("explain", FindingView)
def explain_command(out: Output, id: str, pending: bool, failure: bool) -> None:
    """Why an experiment is pending, slow, stuck or failed: evidence, and the next command.

    \b
    Example: hpcdet explain digits-7f3a
    """
    found = find.reference(id, settings().root)
    gathered = gather.gather(found.paths)
    asked = {kind for kind, flag in (("pending", pending), ("failure", failure)) if flag}
    known = [
        finding
        for finding in findings.explain(gathered, found.trial, _OfSite(gathered.paths))
        if not asked or finding.kind in {"state", *asked}
    ]
    if asked and not any(finding.kind in asked for finding in known):
        settings().note("nothing else is known")
    if not out.for_people or out.fields:
        out.emit(known, COLUMNS, key="about")
        return
    for finding, others in _alike(known):
        many = "trials" if others > 1 else "trial"
        more = f" (and {others} more {many} likewise)" if others else ""
        what = f"{finding.about}: {finding.finding}{more}"
        click.echo(escaped(text_format.folded(what, "  ")))
        for line in finding.evidence:
            click.echo(escaped(f"    {line}"))
        if finding.next:
            click.echo(escaped(f"  next: {finding.next}"))


def _alike(findings: list[FindingView]) -> Iterator[tuple[FindingView, int]]:
    """Merge findings for people: the first slow trial of each advice and the number of others."""
    slow = Counter(finding.next for finding in findings if finding.kind == "slow")
    for finding in findings:
        if finding.kind != "slow":
            yield finding, 0
        elif count := slow.pop(finding.next, 0):
            yield finding, count - 1


class _OfSite(Commands):
    """Words that fit the experiment's site and this shell."""

    def __init__(self, paths: ExperimentPaths) -> None:
        self._site = paths.site

    def called(self, paths: ExperimentPaths, trial: int = 0) -> str:
        return called(find.Reference(paths, trial))

    def may_decide(self) -> str:
        from hpcdet.site_files.load_site import from_resolved

        try:
            forbidden = from_resolved(self._site).capabilities.login_daemon == "forbidden"
        except HpcdetError:
            return "start"
        return "run --once" if forbidden else "start"

    def look(self, jobs: list[str]) -> str:
        from hpcdet.schedulers import opening
        from hpcdet.site_files.load_site import from_resolved

        try:
            return opening.of(from_resolved(self._site)).names.look(jobs) if jobs else ""
        except HpcdetError:
            return ""

    def by_hand(self, script: str) -> str:
        from hpcdet.jobs.script import submission
        from hpcdet.site_files.load_site import from_resolved

        try:
            return shlex.join(submission.argv(from_resolved(self._site), Path(script)))
        except HpcdetError:
            return script
