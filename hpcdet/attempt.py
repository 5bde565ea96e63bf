"""One rank of an attempt: ``python -m hpcdet.attempt EXP TRIAL ATTEMPT``.

Its place among the ranks comes from the launcher's environment. The exit code is a hint only:
0 for every end with a verdict that is no error, 1 for an error in the user's code, 75 if other
ranks vanished. ``python -m hpcdet.attempt --test EXP [TRIAL]`` tries one batch in a copy.
"""

from __future__ import annotations

from hpcdet.process import signals

signals.install()  # before anything slow: torch takes seconds to import

import contextlib  # noqa: E402
import functools  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402

from hpcdet import __version__  # noqa: E402
from hpcdet.errors import HpcdetError  # noqa: E402
from hpcdet.process import (  # noqa: E402
    command_line,
    determined_imports,
    late_compiler,
    launcher_watch,
)
from hpcdet.process.console import say  # noqa: E402
from hpcdet.process.entrypoint import parse  # noqa: E402
from hpcdet.process.location import AttemptLocation  # noqa: E402
from hpcdet.process.ranks import PEER_LOST, Ranks  # noqa: E402
from hpcdet.store.config import numerics, resolved_config  # noqa: E402
from hpcdet.store.folder import held_folder, scratch  # noqa: E402
from hpcdet.store.fs import files  # noqa: E402
from hpcdet.store.trials import staged_data  # noqa: E402
from hpcdet.train.attempt import node_proof  # noqa: E402

_OTHER_VERSION = """\
hint: pip install hpcdet=={2} in the image, or none: then that of the host is bound into it
error: the image has hpcdet {0} ({1}), and the job {2}"""


def main(argv: list[str] | None = None) -> int:
    """Run one rank; returns the exit code."""
    given = command_line.OF_RANK.parse_args(argv)
    sys.dont_write_bytecode = True  # the code snapshot stays as it is
    os.umask(0o077)  # launchers that start ranks on other nodes forget that of the script
    if given.hpcdet not in ("", __version__):
        print(_OTHER_VERSION.format(__version__, __file__, given.hpcdet), file=sys.stderr)
        return 1
    late_compiler.put_off()  # before torch is imported
    if given.test:
        with _undisturbed():
            from hpcdet.rehearsal import rehearse
        return rehearse(given.experiment, given.trial, functools.partial(run, hurried=True))
    launcher_watch.end_with_it()
    try:
        place = _place(given.experiment, given.trial, given.attempt, given.identity)
    except (HpcdetError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    ranks = Ranks.from_environment()
    if place.experiment is not None and place.trial.scratch is not None:
        scratch.prepare(place.experiment)
    _redirect(place.attempt.log(ranks.rank))
    place.announce()
    return run(place)


def _place(experiment: Path, trial: int, attempt: int, identity: str) -> AttemptLocation:
    """The attempt's place, in the folder that its worker has claimed it in.

    Raises:
        ConfigError: somebody else may change the folder.
        IntegrityError: it is another one.
        OSError: it cannot be opened.
    """
    place = AttemptLocation.within(held_folder.hold(experiment), trial, attempt)
    if identity and place.held is not None:
        held_folder.refuse_another(place.held, place.attempt, identity)
    return place


def run(place: AttemptLocation, *, hurried: bool = False) -> int:
    """Run the entrypoint, in this process unless it asks for another; returns the exit code.

    Args:
        hurried: time is up after the first step of a script or command.
    """
    try:
        assert place.experiment is not None
        asked = resolved_config.load(place.experiment.config)
        node_proof.require(place.experiment, asked)  # before anything of the user's is imported
        _provide_data(place, asked.staged)
        wanted = asked.reproducibility  # libraries read these when they are loaded
        os.environ.update(numerics.imposed(wanted.threads, wanted.device))
        determined_imports.offer(asked.compat.determined)
        entrypoint = parse(asked.entrypoint)
        if hurried and entrypoint.kind != "class":
            os.environ["HPCDET_DEADLINE"] = "0"
        if entrypoint.kind in ("interpreter", "command"):
            from hpcdet.train.attempt import script_process

            return script_process.run(entrypoint, place)
        with _undisturbed():
            from hpcdet.core import conclude
            from hpcdet.pytorch.entry import run_entrypoint
        with conclude():
            run_entrypoint(entrypoint, place.experiment.code)
    except staged_data.LeftEarly:
        return PEER_LOST  # it was told to leave before there was anything to save
    except SystemExit as end:
        if end.code:
            return _failed(place, end)
    except BaseException as error:
        return _failed(place, error)
    from hpcdet.train.attempt.verdicts import unsaid_end

    return unsaid_end(place)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Import torch without looking for garbage, then or later: there is hardly any."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _provide_data(place: AttemptLocation, sources: Sequence[str]) -> None:
    """Let code find the data of ``data.stage`` by ``$HPCDET_DATA``, on the node's disk if it can.

    Raises as ``staged_data.staged``.
    """
    if not sources:
        return
    disk = os.environ.get(staged_data.PLACE)
    if disk is None:  # a rehearsal, or a rank without a worker
        folder = staged_data.linked(sources, place.attempt.root / "data")
    else:
        job = os.environ.get(staged_data.JOB, "")
        folder, digest, why = staged_data.staged(sources, disk, job, signals.heard)
        os.environ[staged_data.DIGEST] = digest
        if why:
            say(f"data.stage: {why}; {folder} leads to the originals")
    os.environ[staged_data.FOLDER] = str(folder)


def _failed(place: AttemptLocation, error: BaseException) -> int:
    from hpcdet.train.attempt.verdicts import unsaid_failure

    return unsaid_failure(place, error)


def _redirect(log: Path) -> None:
    """Redirect this rank's output to its own file, whatever the launcher does with output."""
    files.make_folder(log.parent)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, files.FILE_MODE)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


if __name__ == "__main__":
    code = main()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    if code == 0:
        launcher_watch.say_goodbye()
    # threads of communication libraries may still wait for ranks that are gone
    os._exit(code)
