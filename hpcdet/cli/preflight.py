"""``test``: the code tried on one batch, in a copy, before anything is queued."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from hpcdet.cli.loading import Request, config_argument, request, setting_options
from hpcdet.cli.progress import busy
from hpcdet.cli.settings import settings
from hpcdet.errors import ConfigError
from hpcdet.jobs import create
from hpcdet.search import api, registry
from hpcdet.store import config, files
from hpcdet.store.records import Trial


@click.command("test", short_help="Train one batch, validate, save and restore, here and now.")
@config_argument()
@setting_options()
def test_command(
    config_file: Path, model_dir: Path | None, sets: Sequence[str], site_name: str | None
) -> None:
    """Train one batch, validate, save and restore, on this machine; nothing is queued or kept.

    \b
    Example: hpcdet test random.yaml
    """
    wanted = request(config_file, model_dir, sets, site_name)
    wanted.warn()
    rehearse(wanted)
    settings().note("one batch trained, validated, saved and restored")


def rehearse(wanted: Request) -> None:
    """Try the code with the hyperparameters of the first trial.

    Raises:
        ConfigError: it failed; the hint holds the end of what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="hpcdet-test-") as folder:
        # as in the submission, experiments inside the code are no part of it
        paths = create.create(
            wanted.loaded,
            wanted.site,
            wanted.model_dir,
            Path(folder),
            skip=wanted.root,
            include=wanted.include,
        )
        first = _first_trial(config.load(paths.config))
        files.make_folder(paths.trial(1).root)
        first.write_once(paths.trial(1).record)
        argv = [sys.executable, "-m", "hpcdet.attempt", "--test", str(paths.root)]
        with busy("testing the code on one batch"):
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
    if settings().verbose:
        settings().note(done.stdout.rstrip())
    if done.returncode == 0:
        return
    said = [line for line in done.stdout.splitlines() if line.strip()]
    cause = next((line for line in reversed(said) if not line.startswith("hpcdet:")), "")
    raise ConfigError(
        f"the code failed its test: {cause.strip() or f'exit {done.returncode}'}",
        where=str(wanted.model_dir),
        hint="\n".join(said[-25:]),
    )


def _first_trial(resolved: config.Resolved) -> Trial:
    searcher = registry.searcher(resolved)
    _, actions = searcher.on_event(searcher.initial(), api.Start())
    created = next(action for action in actions if isinstance(action, api.Create))
    return Trial(1, dict(created.params), created.seed, parent=created.parent)
