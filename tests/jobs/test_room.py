"""Room for an experiment's files: what is needed, what is left, and who says so.

The samples of quota commands have the form that their manuals and sites' pages show.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet.config.check.plan import plan
from hpcdet.jobs.checks import quota
from hpcdet.jobs.checks.quota import Quota
from hpcdet.site.models import Site
from hpcdet.store.config.resolved_config import resolve
from hpcdet.store.fs import files
from hpcdet.store.fs.mounts import Mount
from tests.builders import Builder, sweep
from tests.commands import Cli

QUOTA_W = """\
Disk quotas for user ada (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
nfs1:/export/home 52428800* 50000000 55000000   6days   40000       0       0
nfs1:/scratch  1048576       0 4194304             200     500    1000
"""
LFS_QUOTA = """\
Disk quotas for usr ada (uid 1000):
     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
    /mnt/lustre  102400       0 1024000       -    2750       0    3000       -
"""
LFS_QUOTA_Q = "        /lustre/a/very/long/name\n  [10]*  8  20 6d23h59m58s 7 0 0 -\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            QUOTA_W,
            [Quota("nfs1:/export/home", 0, None), Quota("nfs1:/scratch", 3145728 * 1024, 300)],
        ),
        (LFS_QUOTA, [Quota("/mnt/lustre", 921600 * 1024, 250)]),
        (LFS_QUOTA_Q, [Quota("/lustre/a/very/long/name", 0, None)]),
        ("/scratch 1 0 10", [Quota("/scratch", 9 * 1024, None)]),
        ("Disk quotas for user ada (uid 1000): none\n\n  \nx y z 3 4 5\n", []),
    ],
)
def test_quota_commands_are_understood(text: str, expected: list[Quota]) -> None:
    assert quota.parse(text) == expected


def test_the_quota_of_the_right_file_system_counts() -> None:
    quotas = quota.parse(QUOTA_W)
    scratch = Mount("nfs1:/scratch", Path("/scratch"), "nfs4")
    assert quota.chosen(quotas, scratch) == quotas[1]
    assert quota.chosen(quotas, Mount("/dev/sda", Path("/"), "ext4")) is None
    assert quota.chosen(quotas[:1], None) == quotas[0]
    at_mount_point = Mount("mgs@tcp:/lustre", Path("/mnt/lustre"), "lustre")
    assert quota.chosen([quotas[0], *quota.parse(LFS_QUOTA)], at_mount_point) is not None


def test_a_plan_counts_what_runs_and_what_has_ended() -> None:
    config = resolve(
        {
            "searcher": {"name": "random", "max_trials": 100, "max_concurrent_trials": 10},
            "resources": {"slots_per_trial": 2},
            "checkpoint_storage": {"max_paused_bytes": 10},
        }
    )
    need = plan(config, checkpoint_bytes=7)["storage"]
    assert need["inodes_per_trial"]["ended"] <= 12 < need["inodes_per_trial"]["running"]
    assert need["checkpoints"] == 10 * 4 + 90 * 2
    assert need["bytes"] == 7 * need["checkpoints"]
    assert need["paused_bytes"] == 10 * 4 * 7
    left = [quota.Free("/s", "quota", 100, 50), quota.Free("/s", "file system", None, None)]
    assert [text.split(";")[0] for text in quota.shortages(left, need)] == [
        "by quota, /s has 50 inodes left",
        "by quota, /s has 0.0 GB left",
        "trials that are paused may hold 0.0 GB of checkpoints",
    ]


def test_a_site_says_how_to_ask_for_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHO", "ada")
    line = "echo $0 $1 10 0 1000 - 5 0 6 -"
    plain = {"name": "here", "scheduler": "local"}
    told = {**plain, "quota_command": ["sh", "-c", line, "/only", "9"]}
    wrong = {**plain, "quota_command": ["sh", "-c", "echo no such user $0 >&2", "$WHO"]}
    left, unknown = quota.free(Site.model_validate(wrong), tmp_path / "not" / "yet")
    assert [one.by for one in left] == ["file system"]
    assert unknown == [f"the quota of {tmp_path} is not known: sh said: no such user ada"]
    told["quota_command"] = ["sh", "-c", "echo $0 10 0 1000 - 5 0 6 -; exit 1", "/only"]
    left, unknown = quota.free(Site.model_validate(told), tmp_path)
    assert (left[1].by, left[1].bytes, left[1].inodes, unknown) == ("quota", 990 * 1024, 1, [])
    absent = Site.model_validate({**plain, "quota_command": ["no-such-command"]})
    assert "no-such-command" in quota.free(absent, tmp_path)[1][0]


def test_plan_and_submit_compare_with_what_is_left(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "work")
    config = tmp_path / "work" / "random.yaml"
    (tmp_path / "tight.yaml").write_text(
        "extends: local\nname: tight\nquota_command: [echo, /only 10 0 1000 - 5 0 20 -]\n"
    )
    flags = ["--site", str(tmp_path / "tight.yaml")]
    planned = cli("plan", config, *flags, "--checkpoint-size", "2G")
    assert "inodes left; the run may need" in planned.err and "checkpoints may need" in planned.err
    assert "left, quota" in planned.out and "while it runs" in planned.out
    [item] = cli("plan", config, *flags, "-o", "json").items
    assert item["storage"]["bytes"] is None
    assert [one["by"] for one in item["free"]] == ["file system", "quota"]
    sweep(cli.root / f"{item['id']}-0001")
    [item] = cli("plan", config, *flags, "-o", "json").items
    assert item["storage"]["checkpoint_bytes"] == 100  # as in the former one
    assert item["cost"]["by"].endswith("-0001") and 0 < item["cost"]["unit_s"] < 1
    [item] = cli("plan", config, *flags, "--trial-time", "2h", "-o", "json").items
    assert (item["cost"]["by"], item["cost"]["slot_hours"]) == ("--trial-time", 2 * item["trials"])
    assert (item["cost"]["queue_by"], item["cost"]["queue_s"]) == ("no queue", 0)
    # when it would end, by the wait of the former one's jobs on a site that has a queue
    cluster = ["--site", "generic-slurm", "--set", "resources.slots_per_trial=1"]
    [item] = cli("plan", config, *cluster, "--trial-time", "2h", "-o", "json").items
    cost = item["cost"]
    assert cost["queue_by"].endswith("-0001") and cost["queue_s"] == 2  # 1 s and 3 s
    assert cost["end_s"] == cost["run_s"] + 2 * cost["allocations"]
    assert cost["ends_at"] > files.now()
    slow = cli("plan", config, *cluster, "--trial-time", "2h", "--queue-wait", "30m").out
    assert all(len(line) <= 80 or str(tmp_path) in line for line in slow.splitlines())
    slow = " ".join(slow.split())
    assert "if it were submitted now" in slow and "30 min in the queue" in slow
    assert "is no time" in cli("plan", config, "--trial-time", "soon", code=2).err
    assert "is no size" in cli("plan", config, "--checkpoint-size", "big", code=2).err
    said = cli("submit", config, *flags, "--prepare", "--no-test").err
    assert "by quota" in said and "inodes left" in said


def test_status_warns_where_paused_trials_hold_too_much(cli: Cli) -> None:
    built = Builder(
        cli.root / "digits-7f3a", checkpoint_storage={"max_paused_bytes": 150}, max_restarts=1
    )
    for number in (1, 2):
        trial = built.trial()
        attempt = trial.attempt()
        attempt.checkpoint(100)
        attempt.end("paused")
        trial.control("pause")
        said = cli("status", "digits")
        assert ("max_paused_bytes" in said.err) == (number == 2)
    [item] = cli("status", "digits", "-o", "json").items
    assert item["paused_bytes"] == 200


def test_plan_tells_what_brackets_cost(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "work")
    flags = ["--site", "local", "--set", "searcher.max_trials=16"]
    hint = "name: async_halving finds as good a trial sooner"
    for name in ("adaptive_asha", "hyperband", "async_halving"):
        planned = cli(
            "plan", tmp_path / "work" / "random.yaml", *flags, "--set", f"searcher.name={name}"
        )
        assert (hint in planned.out) == (name != "async_halving"), name
