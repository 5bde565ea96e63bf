"""``test``: a run of the code on one batch, in a copy, before anything is queued."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from hpcdet import __version__
from hpcdet.cli.frame.progress import busy
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.times import Seconds
from hpcdet.cli.inputs.load_request import SubmitRequest, config_argument, request, setting_options
from hpcdet.containers import opening
from hpcdet.errors import ConfigError, StillPending
from hpcdet.jobs import one_shot_job
from hpcdet.jobs.create import create
from hpcdet.jobs.create.images import IMAGE
from hpcdet.jobs.script import contained, interpreters, launch
from hpcdet.policy.codes import PolicyRefused
from hpcdet.schedulers.common import processes
from hpcdet.search import searcher_factory
from hpcdet.search.api import events
from hpcdet.search.methods.program import ProgramError
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs import files

_WALLTIME_S = 600
_NODE_S = 1800.0
_OURS = "hpcdet: "
_REFUSALS = "hpcdet.policy.codes."
_ERRORS = ("hpcdet.errors.", _REFUSALS)
_HINT = "hint: "


@click.command("test", short_help="Train one batch, validate, save and restore, here and now.")
@config_argument()
@setting_options()
@click.option(
    "--node/--local",
    default=None,
    help="On a node, by a short job of one rank; or here [here, or where a policy requires it].",
)
@click.option(
    "--timeout",
    type=Seconds(least=1),
    metavar="TIME",
    help="Give up after this time, exit 8 [never here; 1800 with --node, queue included].",
)
def test_command(
    config_file: Path,
    model_dir: Path | None,
    sets: Sequence[str],
    site_name: str | None,
    node: bool | None,
    timeout: float | None,
) -> None:
    """Train one batch, validate, save and restore, on this machine; nothing is queued or kept.

    With --node the same happens in a short job, with the memory, the partition and the options of
    one rank. Ctrl-C cancels it.

    \b
    Examples: hpcdet test random.yaml
              hpcdet test random.yaml --node --timeout 900
    """
    wanted = request(config_file, model_dir, sets, site_name)
    wanted.warn()
    rehearse(wanted, timeout, node)
    settings().note("one batch trained, validated, saved and restored")


def rehearse(wanted: SubmitRequest, timeout: float | None = None, node: bool | None = None) -> None:
    """Run the code with the hyperparameters of the first trial.

    Args:
        timeout: seconds after which it is given up; None: never here, 1800 on a node.
        node: in a job of one rank, or here; None: in a job where a policy requires capabilities of
            nodes, as nothing else may touch code and data, else here.

    Raises:
        ConfigError: it failed; the hint holds the end of what it printed.
        PolicyRefused: P17: it may not be done here.
        StillPending: it did not end in time.
    """
    if node is False and wanted.required is not None:
        raise PolicyRefused(
            "P17",
            f"the code may be tried only on nodes with {', '.join(wanted.required.capabilities)}",
            where="--local",
            hint="leave --local out: the test is a short job there",
        )
    wanted = wanted.with_images()
    if node or wanted.required is not None:
        _rehearse_on_a_node(wanted, timeout or _NODE_S)
    elif node is None and (missing := _runtime_not_here(wanted)):
        settings().warn(f"the code was not tried: {missing}; hpcdet test --node does it in a job")
    else:
        _rehearse_here(wanted, timeout)


def _runtime_not_here(wanted: SubmitRequest) -> str:
    """Return why ranks' containers cannot run on this host; "" if they can, or there are none."""
    image = contained.image(wanted.resolved, wanted.site)
    if image is None:
        return ""
    runtime = opening.runtime(image.container)
    if runtime.by_launcher:
        return "its image is the launcher's to start"
    return "" if shutil.which(runtime.command) else f"{runtime.command} is not on this host"


def python(
    wanted: SubmitRequest, paths: ExperimentPaths, arguments: Sequence[str], host: str
) -> list[str]:
    """Return the command that runs Python as in a rank: in the image, or else by ``host``.

    Args:
        paths: the experiment that it may see.
    """
    image = contained.image(wanted.resolved, wanted.site)
    if image is None:
        return [host, *arguments]
    if opening.runtime(image.container).by_launcher:
        hint = "submit --no-test: the first worker tries it"
        raise ConfigError("its image is the launcher's to start", where=IMAGE, hint=hint)
    made = contained.command(image, wanted.resolved, wanted.site, paths, arguments, os.environ)
    return list(made.command)


def _rehearse_here(wanted: SubmitRequest, timeout: float | None) -> None:
    with tempfile.TemporaryDirectory(prefix="hpcdet-test-") as folder:
        paths = experiment(wanted, Path(folder))
        argv = python(wanted, paths, _rehearsal(paths), sys.executable)
        variables = launch.with_variables(os.environ, wanted.resolved.environment)
        with busy("testing the code on one batch"):
            try:
                code, said = processes.ended(argv, variables, timeout)
            except subprocess.TimeoutExpired as error:
                what = f"the test did not end in {timeout:.0f} s"
                raise StillPending(what, where=str(wanted.model_dir)) from error
    judge(wanted, code, said)


def _rehearse_on_a_node(wanted: SubmitRequest, timeout: float) -> None:
    """Rehearse in a job of one rank. Raises as ``rehearse``, and as ``one_shot_job.run``."""
    with one_shot_job.folder(wanted.root) as place, busy("testing the code on a node"):
        paths = experiment(wanted, place / "experiments")
        answer, said = on_a_node(wanted, place, paths, _rehearsal(paths), timeout)
    settings().note(f"the test ran on {answer.host}")
    judge(wanted, answer.code, said)


def on_a_node(
    wanted: SubmitRequest,
    place: Path,
    paths: ExperimentPaths,
    command: Sequence[str],
    timeout: float = _NODE_S,
) -> tuple[one_shot_job.CommandResult, str]:
    """Run Python in a job of one rank, where a policy wants it; return the answer and output.

    Args:
        place: a ``one_shot_job.folder``.
        paths: the experiment that it may see.
        command: arguments of Python.
        timeout: seconds for all of it, the queue included.

    Raises as ``one_shot_job.run``.
    """
    resolved = wanted.resolved
    need = resolved.resources
    walltime = min(need.walltime_s or _WALLTIME_S, _WALLTIME_S)
    one = dataclasses.replace(
        need, slots_per_trial=1, slots_per_node=1, nodes=1, walltime_s=walltime
    )
    lane = dataclasses.replace(resolved.worker, lanes=1, node_groups=1)
    alone = dataclasses.replace(resolved, resources=one, worker=lane)
    argv = python(wanted, paths, command, interpreters.of_jobs(resolved, wanted.site))
    return one_shot_job.run(place, wanted.site, alone, argv, timeout, wanted.policy)


def _rehearsal(paths: ExperimentPaths) -> list[str]:
    return ["-Pm", "hpcdet.attempt", "--test", "--hpcdet", __version__, str(paths.root)]


def experiment(wanted: SubmitRequest, folder: Path) -> ExperimentPaths:
    """Create an experiment for trying its code, with the first trial; no job belongs to it.

    It is one of its own, in a folder that is removed: what a rehearsal leaves behind would be part
    of the one that is submitted, and where the code fails, nothing of that may have been made.
    """
    # as in the submission, experiments inside the code are no part of it
    paths = create.create(
        wanted.loaded,
        wanted.site,
        wanted.model_dir,
        folder,
        skip=wanted.root,
        include=wanted.include,
        whole=True,
        past=wanted.history,
    )
    first = _first_trial(wanted, paths.code)
    files.make_folder(paths.trial(1).root)
    first.write_once(paths.trial(1).record)
    return paths


def judge(wanted: SubmitRequest, code: int, output: str) -> None:
    """Say how a try has ended, by its exit code and what it printed.

    Raises:
        ConfigError: it failed; the hint holds the end of what it printed.
    """
    if settings().verbose:
        settings().note(output.rstrip())
    said = [line for line in output.splitlines() if line.strip()]
    if code == 0:
        # once, not for each of the two attempts
        ours = dict.fromkeys(line for line in said if line.startswith(_OURS))
        if ours and not settings().verbose:
            settings().note("\n".join(ours))
        return
    told = [line.strip() for line in said if not line.startswith(_OURS)]
    advice = ""
    while told and told[-1].startswith(_HINT):  # the rank's, and that of who watched it
        advice = told.pop().removeprefix(_HINT)
    cause = told[-1] if told else ""
    frames = [line for line in said if line.lstrip().startswith('File "')]
    hint = "\n".join(said[-25:])
    users = [line for line in frames if "/code/" in line or "/hpcdet/" not in line]
    refused = cause.startswith(_REFUSALS)
    if cause.startswith(_ERRORS):
        cause = cause.partition(": ")[2]
        hint = hint if users and not refused else advice  # it says all
    raise ConfigError(
        f"the code failed its test: {cause or f'exit {code}'}",
        where=str(wanted.model_dir),
        hint=hint,
    )


def _first_trial(wanted: SubmitRequest, code: Path) -> Trial:
    searcher = searcher_factory.searcher(wanted.resolved, code, history=wanted.history)
    try:
        _, actions = searcher.on_event(searcher.initial(), events.Start())
    except ProgramError as error:
        hint = "one line of JSON answers each line: docs/guides/search-own.md"
        raise ConfigError(error.what, where="searcher.program", hint=hint) from error
    created = next((action for action in actions if isinstance(action, events.Create)), None)
    if created is None:
        raise ConfigError("the searcher creates no trial at its start", where="searcher")
    return Trial(1, dict(created.params), created.seed, parent=created.parent)
