"""A site tried from this machine: its template, scheduler, partitions, launcher and folders."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from hpcdet.errors import HpcdetError
from hpcdet.jobs.checks import idle_keys, site_checks
from hpcdet.jobs.diagnosis import scheduler_checks
from hpcdet.jobs.diagnosis.finding import SiteFinding
from hpcdet.jobs.script.render import render
from hpcdet.launchers import opening as launchers
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import HasFeatures
from hpcdet.schedulers.opening import open_scheduler
from hpcdet.site import PartitionView, Site, folders, shell_variables
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent


def findings(site: Site) -> list[SiteFinding]:
    """Try a site: its template, its scheduler, its partitions, its launcher."""
    found = [_template(site), *scheduler_checks.findings(site), *_places(site), *_governed(site)]
    views = (site.view(), *(site.view(name) for name in site.partitions))
    programs = {view.launcher.command or _program(site, view) for view in views}
    if "" in programs:
        found.append(SiteFinding("ok", "ranks are processes of the worker", check="launcher"))
    for kind in sorted(programs - {""}):
        path = shutil.which(kind)
        hint = "" if path else "it may be on the nodes only, or come with a module"
        what = f"launcher {kind}: {path or 'not on PATH here'}"
        found.append(SiteFinding("ok" if path else "warning", what, hint, "launcher"))
    texts = [*idle_keys.idle(site), *shell_variables.unset(site)]
    texts += site_checks.without_submitter(site)
    return found + [SiteFinding("warning", text) for text in texts]


def _program(site: Site, view: PartitionView) -> str:
    return launchers.launcher(launchers.kind_of(site, view)).command


def _places(site: Site) -> list[SiteFinding]:
    """Check both places, where a site has project storage beside scratch."""
    root = folders.experiments(site)
    apart = folders.scratch(site, root) if root else None
    if root is None or apart is None:
        return []
    purged = f", purged after {site.paths.purge_days} days" if site.paths.purge_days else ""
    return [
        _writable(root, "experiments"),
        _writable(apart, f"their logs and checkpoints to go on from{purged}"),
    ]


def _governed(site: Site) -> list[SiteFinding]:
    """Look for nodes with each capability that policies may require."""
    governance = site.governance
    if governance is None:
        return []
    found = []
    if governance.statement is None or governance.statement.key is None:
        hint = "policies that require signed statements are refused: governance.statement.key"
        found.append(SiteFinding("warning", "nodes sign no statements", hint, "capability"))
    try:
        scheduler = open_scheduler(site)
        groups = scheduler.node_groups() if isinstance(scheduler, HasFeatures) else []
    except HpcdetError:
        return found  # that it does not answer is said elsewhere
    for name, asked in governance.capabilities.items():
        mine = {name: asked.get(site.scheduler) or {}}
        try:
            wanted = set(opening.of(site).script.node_request([name], mine, site.name).features)
        except HpcdetError as error:
            what = f"capability {name}: {error.what}"
            found.append(SiteFinding("error", what, error.hint, "capability"))
            continue
        parts = [f"{one.nodes} in {one.partition}" for one in groups if wanted <= one.features]
        if parts:
            what = f"capability {name}: nodes: {', '.join(parts)}"
            found.append(SiteFinding("ok", what, check="capability"))
        elif groups:
            what = f"capability {name}: no node has {', '.join(sorted(wanted))}"
            hint = "the features of the nodes in the scheduler's configuration"
            found.append(SiteFinding("error", what, hint, "capability"))
    return found


def _writable(place: Path, what: str) -> SiteFinding:
    there = next(path for path in (place, *place.parents) if path.exists())
    if os.access(there, os.W_OK | os.X_OK):
        return SiteFinding("ok", f"{place}: {what}")
    hint = f"{there} cannot be written; see paths.project and paths.scratch"
    return SiteFinding("error", f"{place}: {what}: cannot be made", hint)


def _template(site: Site) -> SiteFinding:
    intent = Intent(1, "check-1", "hpcdet:check:1", tasks=2, throttle=1, term=0)
    try:
        text = render(Resolved(), site, intent, ExperimentPaths(Path("/nowhere/check")))
    except HpcdetError as error:
        what = f"template: {error.where}: {error.what}"
        return SiteFinding("error", what, error.hint, "template")
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        what = f"template: the rendered script is not valid bash: {done.stderr.strip()}"
        return SiteFinding("error", what, check="template")
    return SiteFinding("ok", "template renders, and bash reads it", check="template")
