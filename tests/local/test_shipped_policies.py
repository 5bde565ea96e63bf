"""Each policy that hpcdet ships, named in a config as its page says, and trained under."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from hpcdet import checkpoint
from hpcdet.read.views import views
from hpcdet.store.folder.layout import ExperimentPaths
from tests import TOP
from tests import experiments as x
from tests.commands import Cli, cli  # noqa: F401
from tests.governed_nodes import GovernedNodes

MODEL = '''\
"""A trunk, a lane and a head; ``Sourced`` names the sources as shipped policies do."""
import os

import torch
from hpcdet import pytorch


class Numbers(torch.utils.data.Dataset):
    def __init__(self, first):
        self.first = first

    def __len__(self):
        return 24

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(self.first + index))
        return x, x.square().sum().reshape(1)


class Net(torch.nn.Module):
    def __init__(self, laned):
        super().__init__()
        self.trunk = torch.nn.Linear(8, 8)
        if laned:
            self.lane = pytorch.Lane(torch.nn.Linear(8, 1), source="restricted")
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x):
        y = torch.tanh(self.trunk(x))
        return self.head(y) + self.lane(y) if hasattr(self, "lane") else self.head(y)


class Shipped(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        net = Net(context.get_hparam("laned"))
        torch.save(net.state_dict(), os.environ["BEGIN"])
        self.net = context.wrap_model(net)
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.net.parameters()))

    def build_training_data_loader(self):
        first = {"public": 0, "restricted": 1000}
        only = self.context.get_hparam("only")
        data = {name: Numbers(n) for name, n in first.items() if only in ("", name)}
        return pytorch.DataLoader(pytorch.Sourced(data), batch_size=8, shuffle=True)

    def build_validation_data_loader(self):
        data = pytorch.Sourced({"public": Numbers(2000), "restricted": Numbers(3000)})
        return pytorch.DataLoader(data, batch_size=8)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        return {"validation_loss": torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])}
'''
CONFIG = """\
name: shipped
entrypoint: model_def:Shipped
hyperparameters: {{global_batch_size: 8, laned: {laned}, only: "{only}"}}
searcher: {{name: single, metric: validation_loss, max_length: {{batches: 6}}}}
min_validation_period: {{batches: 2}}
environment: {{environment_variables: {{BEGIN: {begin}}}}}
governance: {{policy: {policy}}}
"""
MAY = {"open": {"trunk", "head"}, "head-only": {"head"}, "lane-isolated": {"lane"}}
"""The parts that restricted records alone may change."""


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path) -> Iterator[None]:
    with x.local_jobs(tmp_path / "state"):
        yield


def changed(paths: ExperimentPaths, begin: Path) -> set[str]:
    """The parts whose weights training has changed."""
    first = torch.load(begin, weights_only=True)
    last = checkpoint.load(paths.trial(1).checkpoint(6, 1)).shared["models"][0]
    return {name.partition(".")[0] for name in first if not torch.equal(first[name], last[name])}


def test_the_example_under_a_shipped_policy_trains(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    folder = Path(shutil.copytree(TOP / "examples" / "governed", tmp_path / "governed"))
    for one in (folder, *folder.rglob("*")):
        one.chmod(0o700 if one.is_dir() else 0o600)
    done = cli("submit", folder / "head_only.yaml", "--site", "local", "--no-test", "-o", "id")
    paths = ExperimentPaths(cli.root / done.out.strip())
    assert x.run_to_end(paths).state == "COMPLETED", x.story(paths)
    [item] = cli("policy", "report", paths.id, "-o", "json").items
    assert (item["violations"], item["unverified"]) == (0, "")


def test_the_enclave_trains_where_it_is_enforced(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = GovernedNodes(tmp_path)
    governance = {**nodes.site(), "capabilities": {"enclave": {}}}
    site = tmp_path / "here.yaml"
    limits = {"poll_min_s": 0.2}
    site.write_text(
        yaml.safe_dump({"extends": "local", "limits": limits, "governance": governance})
    )
    monkeypatch.setenv("HPCDET_SITE", str(site))
    folder, begin = tmp_path / "model", tmp_path / "begin"
    folder.mkdir(mode=0o700)
    (folder / "model_def.py").write_text(MODEL)
    config = folder / "config.yaml"
    text = CONFIG.format(policy="enclave", only="restricted", laned="false", begin=begin)
    config.write_text(text)
    nodes.attest(socket.gethostname())
    told = cli("submit", config, "--no-test", "-o", "id")
    paths = ExperimentPaths(cli.root / told.out.strip())
    x.until(lambda: views.status(paths).state == "PAUSED", lambda: x.story(paths))
    assert "does not attest enclave" in views.status(paths).why and not begin.exists()
    nodes.attest(socket.gethostname(), capability="enclave")
    cli("resume", paths.id)
    assert x.run_to_end(paths).state == "COMPLETED", x.story(paths)
    assert changed(paths, begin) == {"head"}


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("open", "restricted"),
        ("head-only", "restricted"),
        ("lane-isolated", "restricted"),
        ("lane-isolated", ""),
        ("frozen-trunk", ""),
    ],
)
def test_a_shipped_policy_trains_what_it_says(
    name: str,
    only: str,
    cli: Cli,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    folder.mkdir(mode=0o700)
    (folder / "model_def.py").write_text(MODEL)
    laned = name == "lane-isolated"
    config = folder / "config.yaml"
    begin = tmp_path / "begin"
    config.write_text(CONFIG.format(policy=name, only=only, laned=str(laned).lower(), begin=begin))
    done = cli("submit", config, "--site", "local", "--no-test", "-o", "id")
    paths = ExperimentPaths(cli.root / done.out.strip())
    assert x.run_to_end(paths).state == "COMPLETED", x.story(paths)
    every = {"trunk", "head", "lane"} if laned else {"trunk", "head"}
    frozen = {"trunk"} if name == "frozen-trunk" else set()
    assert changed(paths, begin) == (MAY.get(name, {"head"}) if only else every - frozen)
    [item] = cli("policy", "report", paths.id, "-o", "json").items
    assert (item["violations"], item["unverified"]) == (0, "")
    assert item["assurance"] == ("isolated" if laned else "state_clean")
