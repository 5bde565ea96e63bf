"""``ckpt archive``, ``ckpt get URL`` and ``ckpt ls`` with copies in an object store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from hpcdet import checkpoint
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from tests.builders import Builder
from tests.commands import Cli
from tests.object_stores import KEY, SECRET, Bucket, bucket, endpoint  # noqa: F401

OTHER = 54_321


@pytest.fixture
def made(cli: Cli, bucket: Bucket) -> ExperimentPaths:  # noqa: F811
    """An experiment with a kept checkpoint, and a secret that its config had as it was."""
    built = Builder(cli.root / "digits-7f3a")
    section = {
        **bucket.section,
        "access_key": {"stored": "checkpoint_storage.access_key"},
        "secret_key": {"stored": "checkpoint_storage.secret_key"},
    }
    trial = built.trial()
    trial.attempt().checkpoint(5, committed=False)
    paths = built.paths
    values = dict(resolved_config.load(paths.config).raw) | {"checkpoint_storage": section}
    paths.config.write_bytes(resolved_config.dump(values))
    kept = {"checkpoint_storage.access_key": KEY, "checkpoint_storage.secret_key": SECRET}
    paths.secrets.write_text(json.dumps(kept))
    paths.secrets.chmod(0o600)
    target = paths.trial(1).checkpoint(9, 1)
    checkpoint.save(target, {"w": torch.ones(9)}, meta={"metric": 0.5, "kind": "kept"})
    return paths


def test_what_waits_is_archived_listed_and_got_again(
    cli: Cli,
    made: ExperimentPaths,
    bucket: Bucket,  # noqa: F811
    tmp_path: Path,
) -> None:
    rows = cli("ckpt", "archive", "digits-7f3a", "-o", "json").items
    assert [row["name"] for row in rows] == ["capsule", "1/00000009.g1", "report"]
    [again] = cli("ckpt", "archive", "digits-7f3a", "-o", "json").items
    assert again["name"] == "report"  # which is another one by now; nothing else is sent twice
    [row] = [row for row in cli("ckpt", "ls", "digits-7f3a", "-o", "json").items if row["url"]]
    url = row["url"]
    assert url.endswith("/digits-7f3a/trials/0001/checkpoints/00000009.g1")
    mine = tmp_path / "mine"
    cli("ckpt", "get", url, "--store-of", "digits-7f3a", "-o", mine)
    assert torch.equal(checkpoint.load(mine).shared["w"], torch.ones(9))
    assert cli("ckpt", "digest", mine).out == cli("ckpt", "digest", row["path"]).out

    key = "digits-7f3a/trials/0001/checkpoints/00000009.g1/rank-00000-of-00001.h5"
    data = bytearray(bucket.read(key))
    data[-1000] ^= 1
    bucket.write(key, bytes(data))
    failed = cli("ckpt", "get", url, "--store-of", "digits-7f3a", "-o", tmp_path / "bad", code=9)
    assert url in failed.err and not (tmp_path / "bad").exists()
    failed = cli("ckpt", "get", f"{url}x", "--store-of", "digits-7f3a", code=3)
    assert "no checkpoint is there" in failed.err


def test_checkpoints_go_to_any_place_by_the_tools_of_the_store(
    cli: Cli,
    made: ExperimentPaths,
    bucket: Bucket,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    to = f"s3://{bucket.name}/kept/here/mine"
    [row] = cli("ckpt", "archive", "digits-7f3a/1", to, "-o", "json").items
    assert row["url"] == f"{to}/digits-7f3a/trials/0001/checkpoints/00000009.g1"
    cli("ckpt", "get", row["url"], "-o", tmp_path / "mine")
    checkpoint.verify(tmp_path / "mine")


def test_what_cannot_be_is_an_error_without_the_secret(
    cli: Cli,
    made: ExperimentPaths,
    bucket: Bucket,  # noqa: F811
) -> None:
    cli("ckpt", "archive", "digits-7f3a/1", code=2)
    cli("ckpt", "archive", f"s3://{bucket.name}/x", code=2)
    cli("ckpt", "archive", "digits-7f3a", "--store-of", "digits-7f3a", code=2)
    cli("ckpt", "get", "ftp://host/x", code=2)
    plain = Builder(cli.root / "plain-0001").paths
    assert "no object store" in cli("ckpt", "archive", plain.id, code=2).err
    bucket.client.delete_bucket(Bucket=bucket.name)
    failed = cli("ckpt", "archive", "digits-7f3a", code=5)
    assert "bucket does not exist" in failed.err
    said = [cli(verb, "digits-7f3a").out for verb in ("status", "explain", "show")]
    assert "not in the object store yet" in said[0] and "hpcdet ckpt archive" in said[1]
    shown = "".join([*said, failed.err, cli("report", "digits-7f3a").out])
    assert SECRET not in shown
    for path in made.root.rglob("*"):
        if path.is_file() and path != made.secrets:
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_cannot_read_the_secret(cli: Cli, made: ExperimentPaths) -> None:
    for above in (made.root, *made.root.parents):
        if not above.is_mount():
            above.chmod(above.stat().st_mode | 0o055)  # as one who lets others look in
    pid = os.fork()
    if not pid:
        os.setgroups([])
        os.setgid(OTHER)
        os.setuid(OTHER)
        try:
            made.config.stat()
            made.secrets.read_bytes()
        except PermissionError as refused:
            os._exit(0 if str(made.secrets) in str(refused) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
