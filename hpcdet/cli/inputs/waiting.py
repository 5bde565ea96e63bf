"""``submit --hold`` and ``--after``: conditions for the start of a new experiment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdet.cli.frame.settings import settings
from hpcdet.cli.inputs.load_request import SubmitRequest
from hpcdet.control.requests import commands
from hpcdet.errors import ConfigError, NotFound, UsageError
from hpcdet.read.lookup import find
from hpcdet.schedulers import opening
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed


@dataclass(frozen=True)
class Waiting:
    """Conditions for the start of an experiment, recorded as commands before its first turn.

    Attributes:
        held: its jobs wait in the queue until the user releases them.
        experiments: must be closed as COMPLETED before anything is submitted.
        jobs: ids of the scheduler's jobs that must succeed (``afterok``).
    """

    held: bool = False
    experiments: tuple[ExperimentPaths, ...] = ()
    jobs: tuple[str, ...] = ()

    @classmethod
    def parse(cls, held: bool, after: Sequence[str], wanted: SubmitRequest) -> Waiting:
        """Return the conditions of the flags ``--hold`` and ``--after``.

        Raises:
            NotFound: neither an experiment nor a job that the site's scheduler could know.
            ConfigError: the experiment has ended, and not well.
            UsageError: one trial of an experiment is named.
        """
        experiments: list[ExperimentPaths] = []
        jobs: list[str] = []
        for text in after:
            try:
                found = find.reference(text, wanted.root)
            except NotFound:
                job = opening.of(wanted.site).names.waited_for(text)
                if job is None:
                    raise
                jobs.append(job)
                continue
            if found.trial:
                hint = f"name the experiment: {found.paths.id}"
                raise UsageError(
                    "--after takes whole experiments, not one trial", where=text, hint=hint
                )
            closed = Closed.read(found.paths.closed)
            if closed is None:
                experiments.append(found.paths)
            elif closed.state != "COMPLETED":
                what = f"the experiment ended as {closed.state}; --after waits for success"
                raise ConfigError(what, where=found.paths.id, hint="leave --after out")
            else:
                settings().note(f"{found.paths.id} is COMPLETED: nothing to wait for")
        return cls(held, tuple(experiments), tuple(jobs))

    def ask(self, paths: ExperimentPaths) -> None:
        """Record the conditions in a new experiment; the experiments it follows will wake it."""
        if self.held:
            commands.ask(paths, "hold")
        if self.experiments or self.jobs:
            folders = [os.path.relpath(other.root, paths.root) for other in self.experiments]
            commands.ask(paths, "after", experiments=folders, jobs=list(self.jobs))
        for other in self.experiments:
            # closed meanwhile: the first turn sees that
            with contextlib.suppress(UsageError):
                commands.ask(other, "follow", path=os.path.relpath(paths.root, other.root))
