"""One command run in a short job of its own, and its output.

The job is made by the site's own template and scheduler, so that it meets what a worker would
meet. All it needs and all it says lies in a folder that is removed afterwards.

``python -m hpcdet.jobs.one_shot_job FOLDER`` is what the job runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdet.errors import HpcdetError, StillPending, Unavailable
from hpcdet.jobs.script import command_job, launch
from hpcdet.schedulers.calls import lost_submissions, submission_rate
from hpcdet.schedulers.common.base import Job, Scheduler, Submission, SubmissionRefused, Task
from hpcdet.schedulers.opening import open_scheduler
from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import JsonRecord

if TYPE_CHECKING:
    from hpcdet.policy.compiled import CompiledPolicy

_LOOK_S = 0.1
_PATIENCE_S = 120.0
_REMOVE_S = 5.0
_TAIL = 4000
STAGE = "stage"
"""File in the job's folder in which the command may say what it is at."""


@dataclass(frozen=True)
class CommandResult(JsonRecord):
    """``answer.json``.

    Attributes:
        code: exit code of the command; negative if a signal ended it.
        host: where it ran.
    """

    code: int
    host: str
    at: str = ""


@contextlib.contextmanager
def folder(root: Path) -> Iterator[Path]:
    """A private folder below ``root``, where the nodes see it; removed at the end.

    Raises:
        Unavailable: it cannot be made.
    """
    new = not root.exists()
    try:
        files.make_folder(root)
        made = Path(tempfile.mkdtemp(prefix=".hpcdet-errand-", dir=root))
    except OSError as error:
        what = f"cannot make a folder: {error.strerror}"
        raise Unavailable(what, where=str(error.filename or root)) from error
    try:
        yield made
    finally:
        limit = time.monotonic() + _REMOVE_S
        # the job that answered may not have closed its log yet
        while made.exists() and time.monotonic() < limit:
            shutil.rmtree(made, ignore_errors=True)
            time.sleep(0.02)
        if new:
            with contextlib.suppress(OSError):  # somebody else uses it by now
                root.rmdir()


def run(
    place: Path,
    site: Site,
    experiment: Resolved,
    argv: Sequence[str],
    timeout_s: float,
    policy: CompiledPolicy | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[CommandResult, str]:
    """Run a command in a job of one task, and wait for it.

    Args:
        place: a ``folder``; the command starts there.
        experiment: whose resources, environment and options the job gets.
        timeout_s: for all of it, the queue included.
        policy: whose nodes the job asks for, if the experiment is governed.
        tell: called with how the job stands, whenever it is looked at.

    Returns:
        The answer, and everything that the command printed.

    Raises:
        HpcdetError: the scheduler refused the job, or it ended without an answer.
        StillPending: there was no answer in time. The job is canceled, as on any other way out.
    """
    paths = ExperimentPaths(place)
    name = place.name.lstrip(".")
    most = site.limits.name_max or len(f"{name}-1")
    intent = Intent(
        1, f"{name}-1"[-most:].lstrip("-_"), f"hpcdet:{name}:1", tasks=1, throttle=1, term=0
    )
    command = ["hpcdet.jobs.one_shot_job", str(place), *argv]
    made = command_job.build(paths, intent, experiment, site, command, policy)
    scheduler = open_scheduler(site)
    answer: CommandResult | None = None
    try:
        job = Job(_submit(scheduler, site, made), 1, files.now())
        answer = _wait(paths, scheduler, site, job, timeout_s, tell)
    finally:
        if answer is None:
            _cancel(scheduler, made)
    return answer, _text(place / "output")


def _submit(scheduler: Scheduler, site: Site, made: Submission) -> str:
    try:
        return submission_rate.submit(scheduler, made, site.limits.submit_per_min, _PATIENCE_S)
    except SubmissionRefused as error:
        raise HpcdetError(f"the scheduler refused the job: {error}") from error


def _wait(
    paths: ExperimentPaths,
    scheduler: Scheduler,
    site: Site,
    job: Job,
    timeout_s: float,
    tell: Callable[[str], None],
) -> CommandResult:
    limit, look, ended = time.monotonic() + timeout_s, 0.0, 0.0
    task: Task | None = None
    while True:
        answer = CommandResult.read(paths.root / "answer.json")
        if answer is not None:
            return answer
        now = time.monotonic()
        if now >= look:
            look = now + max(1.0, site.limits.poll_min_s)
            with contextlib.suppress(Unavailable):
                task = next(iter(scheduler.query([job])[job.job]), None)
        stage = _text(paths.root / STAGE)
        tell(f"job {job.job}, {stage or _state(task)}")
        if task is not None and task.state.final:
            ended = ended or now
            if now - ended > max(1.0, site.limits.poll_min_s):  # its last words may be on their way
                raise HpcdetError(
                    f"the job ended ({task.state.value}) without an answer",
                    where=f"job {job.job}",
                    hint=_said(paths)
                    or f"do the nodes see {paths.root.parent}, and the same Python?",
                )
        if now > limit:
            raise StillPending(
                f"no answer in {timeout_s:.0f} s: {_state(task)}", where=f"job {job.job}"
            )
        time.sleep(_LOOK_S)


def _state(task: Task | None) -> str:
    """How a job stands, in the scheduler's words."""
    return f"{task.state.value} {task.reason}".strip() if task else "not seen"


def _cancel(scheduler: Scheduler, made: Submission) -> None:
    """Cancel the job, whatever its state; an interrupted submission is found by its tag."""
    with contextlib.suppress(Unavailable):
        job = lost_submissions.find(scheduler, made.name, made.tag, made.script)
        if job is not None:
            scheduler.cancel(job)


def _said(paths: ExperimentPaths) -> str:
    """The end of the job's own log."""
    logs = sorted(paths.job_log(1).glob("*.log"))
    return "\n".join(_text(log) for log in logs)[-_TAIL:].strip()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def main(argv: list[str]) -> int:
    """Run the command and leave the answer; what the template adds to it is left out."""
    [folder, *command] = command_job.arguments(argv)
    wanted = command_job.environment(ExperimentPaths(Path(folder)))
    os.chdir(folder)  # one that is removed meanwhile is not made again
    # the script ignores these for its worker; of these two, one shall end this
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with open("output", "wb") as output:
        done = subprocess.run(
            command,
            env=launch.with_variables(os.environ, wanted),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    CommandResult(done.returncode, socket.gethostname(), files.now()).write_once(
        Path("answer.json")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
