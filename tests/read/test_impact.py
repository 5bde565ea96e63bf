"""What a source has reached: checkpoints, layers, heirs, and the last clean checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup
from hpcdet.store.fs import sealed_json
from hpcdet.store.trials import parents
from tests.builders import Builder, TrialBuilder, put
from tests.commands import Cli

POLICY = CompiledPolicy(
    "p",
    1,
    "sha256:" + "0" * 64,
    (LayerGroup("trunk", "^t"), LayerGroup("lane", "^l", lane=True)),
    (DataSource("hosp-a"), DataSource("public")),
    ((0.0, 1.0), (1.0, 0.0)),
    assurance="isolated",
)


def governed(root: Path, policy: CompiledPolicy = POLICY) -> Builder:
    section = {"policy": "policy.yaml", "digest": policy.digest}
    built = Builder(root, governance=section)
    built.paths.compiled_policy.write_text(policy.to_json())
    return built


def saved(
    trial: TrialBuilder, steps: dict[int, list[list[float]]], complete: bool = True
) -> list[Path]:
    """Checkpoints of a trial by step, each with its exposure."""
    attempt = trial.attempt()
    found = []
    for step, exposure in steps.items():
        folder = attempt.checkpoint(step)
        block: dict[str, Any] = {
            "sources": ["hosp-a", "public"],
            "layers": ["trunk", "lane"],
            "exposure": exposure,
            "complete": complete,
            "policy_digest": POLICY.digest,
        }
        meta = {"batches": step, "governance": block}
        shard = {"file": "rank-00000-of-00001.h5", "bytes": 100, "table": [0, 1], "root": "e" * 64}
        plain = {
            "format": "hpcdet-checkpoint",
            "schema": 1,
            "name": folder.name,
            "writer": "hpcdet",
            "world": 1,
            "digest": "d" * 64,
            "shared": "d" * 64,
            "private": [""],
            "shards": [shard],
            "meta": {**meta, "trial": trial.paths.number, "at": str(folder)},
            "prev_root": "",
        }
        (folder / "MANIFEST.json").write_bytes(sealed_json.text(sealed_json.sealed(plain)))
        found.append(folder)
    attempt.end("completed")
    return found


def begins_from(child: TrialBuilder, parent: str, donor: TrialBuilder, step: int) -> None:
    """Give a trial a checkpoint of another one, as the holder of the lease does."""
    parents.forget()
    donation = next(one for one in parents.donations(donor.paths, "batches") if one.step == step)
    made = parents.give(donation, child.paths)
    record = child.paths.record
    from hpcdet.store.folder.records import Trial

    before = Trial.read(record)
    assert before is not None
    put(record, dataclasses.replace(before, parent=parent, origin=parents.origin_of(made)))


Exposure = list[list[float]]
CLEAN: Exposure = [[0, 0], [5, 0]]
LANE: Exposure = [[0, 3.5], [9, 0]]
TRUNK: Exposure = [[1, 3.5], [9, 0]]


def test_what_a_source_has_reached_is_told_with_its_heirs(cli: Cli) -> None:
    built = governed(cli.root / "a-1111")
    first = built.trial()
    folders = saved(first, {100: CLEAN, 200: LANE, 300: LANE})
    clone, clean, grandchild = built.trial(), built.trial(), built.trial()
    begins_from(clone, "1@200 batches", first, 200)
    begins_from(clean, "1@100 batches", first, 100)
    [inherited] = clone.paths.checkpoints.iterdir()
    begins_from(grandchild, "2@200 batches", clone, 200)
    other = governed(cli.root / "b-2222")
    fork = other.trial()
    begins_from(fork, "../a-1111/1@300 batches", first, 300)

    rows = cli("policy", "impact", "hosp-a", "-o", "json").items
    assert [(row["experiment"], row["trial"]) for row in rows] == [
        ("a-1111", 1),
        ("a-1111", 2),
        ("a-1111", 4),
        ("b-2222", 1),
    ]
    row = rows[0]
    assert row == {
        "experiment": "a-1111",
        "trial": 1,
        "checkpoint": str(folders[2]),
        "layers": ["lane"],
        "last_clean": str(folders[0]),
        "heirs": ["a-1111/2", "a-1111/4", "b-2222/1"],
        "checkpoints": [str(folders[1]), str(folders[2])],
        "lane_only": True,
        "versions": [],
    }
    assert rows[1]["checkpoint"] == str(inherited)
    assert (rows[1]["last_clean"], rows[1]["heirs"]) == ("", ["a-1111/4"])
    assert "a-1111" in cli("policy", "impact", "hosp-a").out
    [public] = [r for r in cli("policy", "impact", "public", "-o", "json").items if r["trial"] == 3]
    assert (public["layers"], public["lane_only"]) == (["trunk"], False)


def test_heirs_are_found_though_the_parents_checkpoint_is_gone(cli: Cli) -> None:
    built = governed(cli.root / "a-1111")
    first, clone = built.trial(), built.trial()
    _, gone, _ = saved(first, {100: CLEAN, 200: LANE, 300: TRUNK})
    begins_from(clone, "1@200 batches", first, 200)
    for file in gone.iterdir():
        file.unlink()
    gone.rmdir()
    row = cli("policy", "impact", "hosp-a", "-o", "json").items[0]
    assert (row["heirs"], row["layers"], row["lane_only"]) == (
        ["a-1111/2"],
        ["trunk", "lane"],
        False,
    )


def test_lanes_go_alone_under_isolation_only(cli: Cli) -> None:
    built = governed(cli.root / "a-1111", dataclasses.replace(POLICY, assurance="state_clean"))
    saved(built.trial(), {200: LANE})
    [row] = cli("policy", "impact", "hosp-a", "-o", "json").items
    assert (row["layers"], row["lane_only"], row["last_clean"]) == (["lane"], False, "")


def test_what_is_not_known_is_said(cli: Cli) -> None:
    built = governed(cli.root / "a-1111")
    saved(built.trial(), {100: CLEAN}, complete=False)
    [damaged] = saved(built.trial(), {100: LANE})
    (damaged / "MANIFEST.json").write_text("{}")
    Builder(cli.root / "plain-3333")
    ran = cli("policy", "impact", "hosp-a")
    assert "no checkpoint was exposed to hosp-a" in ran.err
    assert "a-1111/1: the history of 00000100" in ran.err
    assert "a-1111/2: 00000100" in ran.err
    assert "1 experiment has no policy: what reached it is not known" in ran.err
    assert "no id of a source" in cli("policy", "impact", "../x", code=2).err


def test_unknown_history_is_never_clean(cli: Cli) -> None:
    built = governed(cli.root / "a-1111")
    trial = built.trial()
    saved(trial, {100: CLEAN}, complete=False)
    saved(trial, {200: LANE}, complete=False)
    [row] = cli("policy", "impact", "hosp-a", "-o", "json").items
    assert row["last_clean"] == ""
