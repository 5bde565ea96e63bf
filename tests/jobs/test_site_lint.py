"""``site lint``: what bash and ShellCheck find in the scripts of a site, and what it is of."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from hpcdet.jobs.checks.site_lint import script_of
from hpcdet.site_files import load_site
from tests import TOP
from tests.commands import Cli


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("HPCDET_SITE_DIR", raising=False)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(text)
    return path


def test_scripts_are_rendered_for_each_partition(cli: Cli, tmp_path: Path) -> None:
    file = write(
        tmp_path / "two.yaml",
        "extends: generic-slurm\nsetup: [module load cuda]\n"
        "partitions:\n  day: {}\n  night:\n    setup: ['if [ -n \"$HOME\" ]; then']\n",
    )
    said = cli("site", "lint", file, "-o", "json", code=4)
    assert [(i["site"], i["job"], i["template"], i["bash"]) for i in said.items] == [
        ("two", "worker", "slurm/worker.sbatch.j2", "findings"),
        ("two", "sentinel", "slurm/sentinel.sbatch.j2", "findings"),
        ("two", "searcher", "slurm/worker.sbatch.j2", "findings"),
    ]
    assert all(finding.startswith("night: ") for item in said.items for finding in item["findings"])
    assert json.loads(said.err)["error"]["code"] == "CONFIG_INVALID"
    file.write_text(file.read_text().replace("then'", "then true; fi'"))
    assert {i["bash"] for i in cli("site", "lint", file, "-o", "json").items} == {"ok"}


def test_shellcheck_reads_what_bash_lets_pass(cli: Cli, tmp_path: Path) -> None:
    file = write(tmp_path / "own.yaml", "extends: local\nsetup: ['cd /scratch/$USER/data']\n")
    [item] = cli("site", "lint", file, "-o", "json", code=4).items
    assert (item["bash"], item["shellcheck"]) == ("ok", "findings")
    assert "SC2164" in item["findings"][0]
    said = cli("site", "lint", file, code=4).err
    assert "own, worker: default: line " in said and "SC2164" in said


def test_a_machine_without_shellcheck_says_so(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    file = write(tmp_path / "own.yaml", "extends: local\npython: /usr/bin/python3\n")
    said = cli("site", "lint", file, "-o", "json")
    assert [(i["bash"], i["shellcheck"]) for i in said.items] == [("ok", "absent")]
    assert "shellcheck is not installed" in json.loads(said.out)["warnings"][0]


def test_a_template_that_is_wrong_is_named_with_its_line(cli: Cli, tmp_path: Path) -> None:
    template = write(
        tmp_path / "templates" / "local" / "worker.sh.j2", "#!/bin/bash\n\n{{ wallclock }}\n"
    )
    file = write(tmp_path / "own.yaml", f"extends: local\ntemplates: {tmp_path / 'templates'}\n")
    [item] = cli("site", "lint", file, "-o", "json", code=4).items
    assert (item["bash"], item["shellcheck"]) == ("findings", "absent")
    assert f"{template}:3" in item["findings"][0] and "wallclock" in item["findings"][0]


def test_all_sites_are_read_also_behind_one_that_is_wrong(cli: Cli, tmp_path: Path) -> None:
    write(Path(".hpcdet/sites/alpha.yaml"), "extends: local\nlimit: {}\n")
    write(Path(".hpcdet/sites/beta.yaml"), "extends: local\n")
    items = {
        item["site"]: item for item in cli("site", "lint", "--all", "-o", "json", code=4).items
    }
    assert items["alpha"]["bash"] == "findings" and items["alpha"]["job"] == ""
    assert "alpha.yaml:2: limit" in items["alpha"]["findings"][0]
    assert "did you mean 'limits'?" in items["alpha"]["findings"][0]
    assert items["beta"]["bash"] == "ok" and items["generic-slurm"]["bash"] == "ok"
    assert "exclude each other" in cli("site", "lint", "--all", "beta", code=2).err
    assert "known sites" in cli("site", "lint", "nowhere", code=4).err


def test_keys_that_mean_nothing_to_the_scheduler_are_warned_of(cli: Cli, tmp_path: Path) -> None:
    file = write(
        tmp_path / "own.yaml",
        "extends: local\nplace: scatter\npartitions: {a: {chunk: {ngpus: 1}, max_nodes: 2}}\n"
        "capabilities: {rerun: server}\n",
    )
    keys = ["capabilities.rerun", "partitions.*.chunk", "place"]
    warned = json.loads(cli("site", "lint", file, "-o", "json").out)["warnings"]
    assert warned[-3:] == [f"site own: {key} means nothing to the scheduler local" for key in keys]
    checked = cli("site", "check", file, "-o", "json").items
    texts = [item["what"] for item in checked if item["level"] == "warning"]
    assert texts == [f"{key} means nothing to the scheduler local" for key in keys]

    write(file, "extends: generic-pbs\ncapabilities: {arrays: true}\n")
    assert "arrays means nothing without rerun: server" in cli("site", "lint", file).err
    write(file, "extends: generic-pbs\ncapabilities: {arrays: true, rerun: server}\n")
    assert "means nothing" not in cli("site", "lint", file).err


def test_recipes_for_hardware_render_as_they_say(cli: Cli, tmp_path: Path) -> None:
    page = (TOP / "docs" / "guides" / "sites.md").read_text()
    section = page.partition("\n## Accelerators, cores and networks\n")[2].partition("\n## ")[0]
    slurm, pbs = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    sites = []
    for name, text in (("slurm", slurm), ("pbs", pbs)):
        file = write(tmp_path / f"{name}.yaml", text)
        said = cli("site", "lint", file, "-o", "json")
        assert {item["bash"] for item in said.items} == {"ok"}
        assert not [text for text in json.loads(said.out)["warnings"] if name in text]
        sites.append(load_site.load(str(file)))
    mig, rocm = (script_of(sites[0], "worker", name) for name in ("mig", "mi250"))
    assert "#SBATCH --gres=gpu:1g.10gb:1\n" in mig and "#SBATCH --gres=gpu:mi250:1\n" in rocm
    assert "export GLOO_SOCKET_IFNAME=hsn0\n" in rocm and "IFNAME" not in mig
    slices = script_of(sites[1], "worker", "mig")
    assert ":ngpus=1:gpu_type=1g.10gb" in slices
    assert "export UCX_NET_DEVICES=mlx5_0:1\n" in slices


def test_the_schema_is_printed(cli: Cli) -> None:
    printed = json.loads(cli("site", "schema").out)
    assert printed["title"] == "hpcdet site file" and "partitions" in printed["properties"]


@pytest.mark.parametrize("name", ["API_TOKEN", "LOGGED_IN"])
@pytest.mark.parametrize("value", ["$API_TOKEN", "ann:${API_TOKEN}"])
def test_a_secret_is_not_expanded_into_scripts(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("API_TOKEN", "word")
    file = write(tmp_path / "own.yaml", f"extends: local\nenv: {{{name}: '{value}'}}\n")
    assert f"env.{name}: a secret would stand in every job script" in cli("site", "lint", file).err
    assert load_site.load(str(file)).env[name] == value


def test_a_variable_that_is_not_set_is_warned_of(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOB_DISK", raising=False)
    file = write(tmp_path / "own.yaml", "extends: local\nenv: {A: '$HOME/a', B: '${JOB_DISK}/b'}\n")
    said = "env.B: ${JOB_DISK} is not set here and stays as it is written; a value that only"
    warned = json.loads(cli("site", "lint", file, "-o", "json").out)["warnings"]
    [text] = [text for text in warned if "env." in text]
    assert text.startswith(f"site own: {said}")
    checked = cli("site", "check", file, "-o", "json").items
    assert any(item["what"].startswith(said) for item in checked if item["level"] == "warning")
