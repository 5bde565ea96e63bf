"""Processes whose log lies on a full disk go on."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOSSY = "from hpcdet.store.folder import log_streams; log_streams.lose_what_does_not_fit();"
SAYS = "import sys; print('x' * 9999, flush=True); print('y', file=sys.stderr); sys.exit(7)"


@pytest.mark.parametrize(("before", "code"), [(LOSSY, 7), ("", 1)])
def test_what_a_full_disk_does_not_take_is_lost(before: str, code: int) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", before + SAYS], stdout=full, stderr=full)
    assert done.returncode == code


def test_what_fits_is_written_at_once() -> None:
    says = f"{LOSSY} print('é\\n\\udcff'); import os, sys; print('z', file=sys.stderr); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", says], capture_output=True)
    assert (done.stdout, done.stderr) == ("é\n\\udcff\n".encode(), b"z\n")


def test_a_pipe_that_nobody_reads_is_an_error() -> None:
    says = f"{LOSSY} import os\nwhile True: print('x' * 9999)"
    process = subprocess.Popen(
        [sys.executable, "-c", says], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert b"BrokenPipeError" in process.stderr.read()
    process.stderr.close()
    assert process.wait() != 0


@pytest.mark.parametrize(
    "module",
    ["worker", "worker.handover", "worker.again", "worker.sentinel", "control.searcher_job"],
)
def test_processes_of_the_background_end_with_their_own_code(module: str) -> None:
    argv = [sys.executable, "-Pm", f"hpcdet.{module}", "--help"]
    with open("/dev/full", "wb") as full:
        assert subprocess.run(argv, stdout=full, stderr=full).returncode == 0
