"""Batch scripts for Torque: where they differ from those for PBS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import ConfigError
from hpcdet.policy.codes import PolicyRefused
from hpcdet.schedulers.common.request import UserOptions
from hpcdet.schedulers.torque.torque_script import SCRIPT
from hpcdet.site import Site
from hpcdet.site_files import load_site as sites
from tests.jobs.test_render import EXPERIMENT
from tests.jobs.test_render_pbs import INTENT, directives, script, with_args


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No site file or template of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HPCDET_SITE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


def torque(**values: Any) -> Site:
    """The generic Torque site with some values of its own."""
    return Site.model_validate({**sites.load("generic-torque").plain(), "python": "py", **values})


def test_a_worker_is_so_many_nodes_with_so_many_processors() -> None:
    chunk = {"gpus": "{{ slots_per_node }}", "bigmem": True}
    said = directives(script(torque(chunk=chunk, directives={"account": "acct"})))
    assert "-l nodes=2:ppn=6:gpus=2:bigmem" in said and "-A acct" in said
    assert {"-r n", "-c n", "-j oe", "-o /dev/null", "-l walltime=27:46:40"} <= set(said)
    assert not [one for one in said if "select" in one or "place" in one or one.startswith("-J")]


def test_memory_is_of_the_job_or_of_each_process() -> None:
    """``mem`` is ignored where a job has several nodes."""
    need = EXPERIMENT.resources
    memory = need.memory_per_slot
    assert memory is not None
    wide = directives(script(torque()))
    each = memory * need.slots_per_node // (need.slots_per_node * need.cpus_per_slot)
    assert f"-l pmem={-(-each // 2**20)}mb" in wide
    assert not [one for one in wide if one.startswith("-l mem")]
    one = replace(need, nodes=1, slots_per_trial=need.slots_per_node)
    narrow = directives(script(torque(), replace(EXPERIMENT, resources=one)))
    assert f"-l mem={memory * need.slots_per_node // 2**20}mb" in narrow


def test_a_name_that_begins_with_a_digit_gets_a_letter() -> None:
    assert "-N x4d-1" in directives(script(torque(), intent=replace(INTENT, name="4d-1")))


def test_a_sentinel_waits_for_any_end() -> None:
    """A job that waits for a bad end would wait for ever, or be deleted, after a good one."""
    said = directives(script(torque(), intent=replace(INTENT, watches="7.head")))
    assert "-W depend=afterany:7.head" in said and "-l nodes=1:ppn=1" in said


@pytest.mark.parametrize("argument", ["-l nodes=4:ppn=2", "-r y", "-t 0-3"])
def test_options_of_the_user_that_workers_rely_on_are_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match=r"set by hpcdet itself|not for jobs of hpcdet"):
        script(torque(), with_args(argument))
    assert "-l naccesspolicy=singlejob" in directives(
        script(torque(), with_args("-l naccesspolicy=singlejob"))
    )


def test_a_policy_asks_for_properties_of_each_node() -> None:
    known: dict[str, dict[str, Any]]
    known = {"phi": {"properties": ["gov_phi"], "queue": "phi"}, "net": {"properties": ["gov_net"]}}
    asked = SCRIPT.node_request(["phi", "net"], known, "s")
    assert asked.features == ("gov_net", "gov_phi") and asked.settings == {"partition": "phi"}
    with pytest.raises(PolicyRefused, match="would undo"):
        SCRIPT.refuse_undoing("other", UserOptions(), asked)
    with pytest.raises(PolicyRefused, match="does not say how Torque gives hosts"):
        SCRIPT.node_request(["a"], {"a": {}}, "s")


def test_a_job_script_becomes_a_config() -> None:
    lines = ("#!/bin/bash", "#PBS -l nodes=2:ppn=8:gpus=4:ib", "mpirun python train.py")
    found = SCRIPT.translate("\n".join(lines), "mine")
    assert found.config["resources"] == {"slots_per_trial": 8, "nodes": 2, "cpus_per_slot": 2}
    assert found.left == [
        "line 2: ib: a property of nodes: `chunk` of the site file",
        "line 2: gpus=4: of each chunk: `chunk` of the site file",
    ]
