"""The examples of the guide to Python run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdet import client
from tests.builders import Builder, sweep
from tests.commands import Cli
from tests.experiments import config, write_model

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_reading_examples_run(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swept: Builder = sweep(cli.root / "digits-7f3a")
    swept.command("tag", add=["paper"])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    program = "\n".join(block for block in BLOCKS if "client.submit" not in block)
    if not _has_pandas():
        program = program.replace("frame = loss.pandas()", "")
    with pytest.warns(client.HpcdetWarning, match="no environment"):
        exec(program, names)
    assert (tmp_path / "digits.html").exists() and len(names["array"]) == 4
    assert "digits-7f3a BestView(trial=2" in capsys.readouterr().out


def _has_pandas() -> bool:
    try:
        import pandas  # noqa: F401
    except ImportError:
        return False
    return True


def test_the_example_that_submits_trains(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = [block for block in BLOCKS if "client.submit" in block]
    folder = write_model(tmp_path / "model")
    (folder / "random.yaml").write_text(yaml.safe_dump(config(batches=5, trials=3)))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HPCDET_SITE", "local")
    names: dict[str, Any] = {"client": client}
    exec(block, names)
    run = names["run"]
    assert (names["state"], len(run.trials())) == ("COMPLETED", 2)
    assert run.labels == ["pilot"] and run.best is not None
    assert [note.text for note in run.notes] == ["is the learning rate low enough?"]
    assert run.provenance["argv"][:3] == ["hpcdet", "submit", "random.yaml"]
    assert run.path.stat().st_mode & 0o077 == 0
    newest = run.checkpoints()[-1]
    assert newest.export(tmp_path / "weights.safetensors").stat().st_size > 0
    version = client.model("tiny").add(run, "1.0.0")
    assert version.experiment == run.id and client.model("tiny").best().id == version.id
    assert (version.get(tmp_path / "copy") / "MANIFEST.json").exists()
