"""``reproduce --run``: real training again, on the local backend: the same bits, or others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from hpcdet.read.lookup import find
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, Trial
from tests import experiments as x
from tests.commands import Cli

pytestmark = pytest.mark.xdist_group("reproduce")

MODEL = (
    x.TINY
    + """

class Model(Tiny):
    def __init__(self, context):
        super().__init__(context)
        self.folder = Path(context.get_data_config()["paths"])
        rate = sum(float(path.read_text()) for path in sorted(self.folder.iterdir()))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.net.parameters(), lr=rate))

    def train_batch(self, batch, epoch_idx, batch_idx):
        knob = Path(os.environ["KNOB"])  # which no record has
        time.sleep(float(knob.read_text().split()[0]))
        found = super().train_batch(batch, epoch_idx, batch_idx)
        if len(knob.read_text().split()) > 1:
            with torch.no_grad():
                next(self.net.parameters()).add_(1)
        return found
"""
)


@dataclass(frozen=True)
class Lab:
    """One run that has ended, with a file added to its data since."""

    root: Path
    state: Path
    id: str
    knob: Path

    def hpcdet(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "hpcdet", *words]
        given = {"HPCDET_ROOT": str(self.root), "HPCDET_LOCAL_STATE": str(self.state)}
        return subprocess.Popen(
            argv, env={**os.environ, **given}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def experiments(self) -> list[ExperimentPaths]:
        return find.experiments(self.root)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("reproduce")
    root, model, data, knob = (folder / name for name in ("root", "model", "data", "knob"))
    for place in (root, model, data):
        place.mkdir(mode=0o700)
    (model / "model_def.py").write_text(MODEL)
    (data / "rate-0").write_text("0.01")
    knob.write_text("0")
    values = x.config(batches=20, data={"paths": str(data)}, reproducibility={"threads": 1})
    values["hyperparameters"] = {"global_batch_size": 32}
    values["environment"] = {"environment_variables": {"KNOB": str(knob)}}
    values["min_validation_period"] = {"batches": 10}
    values["searcher"] = {"name": "single", "metric": "validation_loss", "max_length": 20}
    (model / "c.yaml").write_text(yaml.safe_dump(values))
    with x.local_jobs(folder / "state") as state:
        lab = Lab(root, state, "", knob)
        flags = ("--site", "local", "--no-test", "--wait", "-o", "id")
        ran = lab.hpcdet("submit", str(model / "c.yaml"), *flags)
        out, err = ran.communicate(timeout=x.PATIENCE_S)
        assert ran.returncode == 0, err
        (data / "rate-1").write_text("0.5")
        yield Lab(root, state, out.strip(), knob)


def test_the_same_bits_from_the_recorded_files_alone(
    lab: Lab, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCDET_ROOT", str(lab.root))
    monkeypatch.setenv("HPCDET_LOCAL_STATE", str(lab.state))
    [item] = cli("reproduce", lab.id, "--run", "-o", "json").items
    assert item["same"] and item["then"] == item["now"] is not None
    assert item["of"] == f"{lab.id}/1" and item["unrestored"] == item["installed"] == []
    assert item["checkpoints"] and all(one["same"] for one in item["checkpoints"])
    again = find.experiment(item["id"], lab.root)
    digests = [x.final_digest(one, 1) for one in (find.experiment(lab.id, lab.root), again)]
    x.same_bits(digests[1], digests[0], x.story(again))
    rows = {row["factor"]: row for row in cli("reproduce", item["id"], "-o", "json").items}
    assert rows["data"]["same"] and rows["libraries"]["same"], "the repetition has its own capsule"


def test_a_trial_of_a_search_has_its_own_seed_and_hyperparameters_again(lab: Lab) -> None:
    sets = ["searcher.name=random", "searcher.max_trials=2"]
    sets += ["hyperparameters.z={type: double, minval: 0, maxval: 1}"]
    words = [word for one in sets for word in ("--set", one)]
    config = str(lab.root.parent / "model" / "c.yaml")
    flags = ("--site", "local", "--no-test", "--wait", "-o", "id", *words)
    ran = lab.hpcdet("submit", config, *flags)
    out, err = ran.communicate(timeout=x.PATIENCE_S)
    assert ran.returncode == 0, err
    search = find.experiment(out.strip(), lab.root)
    ran = lab.hpcdet("reproduce", search.id, "--run")
    assert ran.communicate(timeout=x.PATIENCE_S) and ran.returncode == 3, "which of the two?"
    ran = lab.hpcdet("reproduce", f"{search.id}/2", "--run", "-o", "json")
    out, err = ran.communicate(timeout=x.PATIENCE_S)
    assert ran.returncode == 0, err
    again = find.experiment(json.loads(out)["items"][0]["id"], lab.root)
    x.same_bits(x.final_digest(again, 1), x.final_digest(search, 2), x.story(again))
    records = [Trial.read(one.record) for one in (search.trial(2), again.trial(1))]
    assert records[0] is not None and records[1] is not None
    assert (records[0].params, records[0].seed) == (records[1].params, records[1].seed)


def test_other_bits_end_with_1(lab: Lab) -> None:
    lab.knob.write_text("0 moved")
    try:
        ran = lab.hpcdet("reproduce", lab.id, "--run", "--env", "current")
        out, err = ran.communicate(timeout=x.PATIENCE_S)
    finally:
        lab.knob.write_text("0")
    assert ran.returncode == 1, err
    assert "step 20: other bits" in err and " no " in out


def test_ctrl_c_cancels_what_runs(lab: Lab) -> None:
    known = {paths.id for paths in lab.experiments()}
    lab.knob.write_text("0.5")
    try:
        ran = lab.hpcdet("reproduce", lab.id, "--run")

        def new() -> list[ExperimentPaths]:
            return [paths for paths in lab.experiments() if paths.id not in known]

        x.until(lambda: new() and x.rank_pids(new()[0]))
        ran.send_signal(signal.SIGINT)
        _, err = ran.communicate(timeout=x.PATIENCE_S)
        [paths] = new()
        assert ran.returncode == 130 and f"{paths.id} is canceled" in err, err
        x.until(lambda: x.closed(paths) is not None, lambda: x.story(paths))
        end = Closed.read(paths.closed)
        assert end is not None and end.state == "CANCELED"
    finally:
        lab.knob.write_text("0")
