"""Event files that TensorBoard's own reader reads back: values, resumed attempts, links."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams import metadata
from tensorboard.util import tensor_util

from hpcdet.interop.tensorboard import EventFiles
from tests.builders import Builder, sweep


def scalars(folder: Path, run: str, tag: str) -> list[tuple[int, float]]:
    """Steps and values as TensorBoard shows them."""
    read = EventMultiplexer(tensor_size_guidance={"scalars": 10**6})
    read.AddRunsFromDirectory(str(folder))
    read.Reload()
    rows = read.Tensors(run, tag)
    return [(row.step, tensor_util.make_ndarray(row.tensor_proto).item()) for row in rows]


def event_file(folder: Path, run: str) -> Path:
    [file] = (folder / run).glob("events.out.tfevents.*")
    return file


def test_what_an_attempt_trained_again_counts_once(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    log = tmp_path / "log"
    assert EventFiles(log, [str(built.paths.root)]).update() == []
    trained = scalars(log, "digits-7f3a/1", "training/loss")
    assert [step for step, _ in trained] == [50, 100, 150, 200, 300]
    assert trained[2][1] == 2.0 / 150  # the second attempt's, every bit
    assert scalars(log, "digits-7f3a/1", "validation/accuracy")[0] == (100, 0.8)
    [_, (step, value)] = scalars(log, "digits-7f3a/2", "validation/validation_loss")
    assert step == 300 and math.isnan(value)
    assert scalars(log, "digits-7f3a/3", "training/loss") == [(20, 3.0)]


def test_only_new_lines_are_added_and_those_of_a_lost_attempt_are_not(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    trial = built.trial()
    first = trial.attempt()
    first.metrics("training", 10, loss=1.0)
    log = tmp_path / "log"
    written = EventFiles(log, [str(built.paths.root)])
    written.update()
    before = event_file(log, "digits-7f3a/1").read_bytes()
    written.update()
    assert event_file(log, "digits-7f3a/1").read_bytes() == before
    first.metrics("training", 20, loss=2.0)
    second = trial.attempt(start=10)
    second.metrics("training", 20, loss=3.0)
    written.update()
    assert event_file(log, "digits-7f3a/1").read_bytes().startswith(before)
    first.metrics("training", 30, loss=4.0)
    second.metrics("training", 25, loss=5.0)
    late = built.trial().attempt()
    late.metrics("training", 5, loss=6.0)
    written.update()
    assert scalars(log, "digits-7f3a/1", "training/loss") == [(10, 1.0), (20, 3.0), (25, 5.0)]
    assert scalars(log, "digits-7f3a/2", "training/loss") == [(5, 6.0)]
    assert (
        log.stat().st_mode & 0o777,
        event_file(log, "digits-7f3a/1").stat().st_mode & 0o777,
    ) == (
        0o700,
        0o600,
    )


def test_hyperparameters_are_on_the_page_of_hyperparameters(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    built.trial(rate=0.5, net={"kind": "mlp", "wide": True}, layers=[1, 2]).attempt()
    log = tmp_path / "log"
    EventFiles(log, [str(built.paths.trial(1).root)]).update()
    read = EventMultiplexer()
    read.AddRunsFromDirectory(str(log))
    read.Reload()
    content = read.SummaryMetadata("digits-7f3a/1", metadata.SESSION_START_INFO_TAG)
    info = metadata.parse_session_start_info_plugin_data(content.plugin_data.content)
    assert info.hparams["rate"].number_value == 0.5
    assert info.hparams["net.kind"].string_value == "mlp" and info.hparams["net.wide"].bool_value
    assert info.hparams["layers"].string_value == "[1, 2]"


def test_files_of_the_code_traces_and_other_folders_are_linked(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    attempt = built.trial().attempt()
    own = attempt.trial.root / "tensorboard"
    own.mkdir()
    attempt.paths.traces.mkdir(parents=True)
    attempt.paths.trace(1).write_bytes(b"trace")
    runs = tmp_path / "elsewhere" / "runs"
    runs.mkdir(parents=True)
    log = tmp_path / "log"
    written = EventFiles(log, [str(built.paths.root), str(runs)])
    written.update()
    written.update()
    assert (log / "runs").resolve() == runs
    assert (log / "digits-7f3a" / "1" / "own").resolve() == own
    link = log / "digits-7f3a" / "1" / "attempt-1-rank-1.pt.trace.json.gz"
    assert link.read_bytes() == b"trace"


def test_sources_of_one_name_are_told_apart(tmp_path: Path) -> None:
    sources = []
    for place in ("a", "b"):
        (tmp_path / place / "runs").mkdir(parents=True)
        built = Builder(tmp_path / place / "digits-7f3a")
        built.trial().attempt().metrics("training", 10, loss=float(place == "b"))
        sources += [str(tmp_path / place / "runs"), str(built.paths.root)]
    log = tmp_path / "log"
    written = EventFiles(log, [*sources, str(tmp_path / "gone")])
    for _ in range(2):
        [said] = written.update()
        assert said.startswith(str(tmp_path / "gone"))
    assert (log / "runs-2").resolve() == tmp_path / "b" / "runs"
    assert scalars(log, "digits-7f3a/1", "training/loss") == [(10, 0.0)]
    assert scalars(log, "digits-7f3a-2/1", "training/loss") == [(10, 1.0)]


def test_a_damaged_trial_is_said_and_the_others_are_written(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    bad, good = built.trial().attempt(), built.trial().attempt()
    bad.line("metrics", group="training", step="ten", metrics={})
    good.metrics("training", 10, loss=1.0)
    log = tmp_path / "log"
    [said] = EventFiles(log, [str(built.paths.root)]).update()
    assert "digits-7f3a" in said and "journal.jsonl" in said
    assert scalars(log, "digits-7f3a/2", "training/loss") == [(10, 1.0)]


def test_nothing_of_torch_or_tensorboard_is_imported(tmp_path: Path) -> None:
    program = "import sys, hpcdet.interop.tensorboard, hpcdet.tasks.servers.tensorboard_server;"
    look = "print([m for m in ('torch', 'tensorflow', 'tensorboard', 'h5py') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program + look], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
