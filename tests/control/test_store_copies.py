"""Copies to an object store beside the turns: what a holder starts, records and leaves."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet import checkpoint
from hpcdet.control.leader.daemon_registry import Daemon
from hpcdet.control.leader.leader import Holder
from hpcdet.control.turn.controller import advance
from hpcdet.control.upkeep import store_copies
from hpcdet.read.experiment.gather import gather
from hpcdet.read.explanation import findings
from hpcdet.read.views import describe, views
from hpcdet.store.config import resolved_config
from hpcdet.store.decisions import chain
from hpcdet.store.folder.records import Closed
from hpcdet.store.fs import files
from hpcdet.store.objects.copy_records import CopyRecords
from tests.object_stores import KEY, SECRET, Bucket, bucket, endpoint  # noqa: F401
from tests.paper import World

GENEROUS_S = 120.0


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVERY_S", "SELDOM_S", "SHARE"):
        monkeypatch.setattr(store_copies, name, 0)
    monkeypatch.setenv("TEST_S3_KEY", KEY)
    monkeypatch.setenv("TEST_S3_SECRET", SECRET)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def world(folder: Path, section: dict[str, Any]) -> World:
    """A running experiment with one kept checkpoint."""
    made = World.make(folder, checkpoint_storage=section)
    values = {
        "schema": 1,
        "name": "paper",
        "searcher": {"metric": "loss"},
        "checkpoint_storage": section,
    }
    made.paths.config.write_bytes(resolved_config.dump(values))
    made.paths.provenance.write_bytes(files.canonical({"created_at": files.now()}))
    made.paths.site.write_text("schema: 1\nname: local\nscheduler: local\n")
    target = made.paths.trial(1).checkpoint(3, 1)
    meta: Any = {"metric": 0.5, "kind": "kept"}
    checkpoint.save(target, {"w": torch.zeros(9)}, meta=meta)
    return made


def turn_until(made: World, holder: Holder, over: Callable[[], bool]) -> float:
    """Make turns until something is so; return the length of the longest."""
    limit, longest = time.monotonic() + GENEROUS_S, 0.0
    while not over():
        assert time.monotonic() < limit, views.events(gather(made.paths))
        made.clock.now += 11
        holder.lease.beat()
        began = time.monotonic()
        assert advance(made.paths, holder).held
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.05)
    return longest


def stored(made: World) -> list[dict[str, Any]]:
    return [line for line in chain.read(made.paths) if line["kind"] == "stored"]


def test_what_no_holder_can_copy_waits_says_why_and_is_the_next_ones(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = world(tmp_path, bucket.section)
    monkeypatch.delenv("TEST_S3_SECRET")
    first = made.holder("worker")
    turn_until(made, first, lambda: bool(stored(made)))
    [line] = stored(made)
    assert "TEST_S3_SECRET is not set" in line["why"] and line["waiting"] == ["all"]
    status = views.status(gather(made.paths))
    assert "TEST_S3_SECRET" in status.not_copied
    assert any("not in the object store yet" in line for line in describe.headline(status, "x"))
    [found] = [
        one for one in findings.explain(gather(made.paths)) if "not copied to" in one.finding
    ]
    assert "hpcdet ckpt archive" in found.next
    assert "stored" in {one.kind for one in views.events(gather(made.paths))}
    first.close()
    assert not bucket.names()

    monkeypatch.setenv("TEST_S3_SECRET", SECRET)
    second = made.holder("daemon")
    turn_until(made, second, lambda: bool(CopyRecords.of(made.paths).copied()))
    turn_until(made, second, lambda: not views.status(gather(made.paths)).not_copied)
    assert len(bucket.names()) == 3
    assert stored(made)[-1]["copied"] == ["capsule", "1/00000003.g1"]
    [row] = [row for row in views.checkpoints(made.paths) if row.url]
    assert row.url == f"{bucket.place.url}/paper-0001/trials/0001/checkpoints/00000003.g1"
    second.close()
    for path in made.paths.root.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


def test_turns_do_not_wait_for_a_copy_which_ends_with_its_holder(
    tmp_path: Path,
    silent: str,
) -> None:
    section = {
        "type": "s3",
        "bucket": "b",
        "endpoint_url": silent,
        "access_key": {"env": "TEST_S3_KEY"},
        "secret_key": {"env": "TEST_S3_SECRET"},
    }
    made = world(tmp_path, section)
    holder = made.holder("worker")
    copying: list[Any] = []

    def at_work() -> bool:
        found = holder.written.get(store_copies._KEY)
        copying[:] = [found.running] if found is not None and found.running else []
        return bool(copying)

    turn_until(made, holder, at_work)
    for _ in range(5):  # it hangs, and nobody waits
        made.clock.now += 11
        holder.lease.beat()
        assert advance(made.paths, holder).held
        assert copying[0].process.poll() is None
    holder.close()
    assert copying[0].process.poll() is not None
    assert not CopyRecords.of(made.paths).copied()


def test_a_process_that_says_nothing_is_ended(
    tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_copies, "STALLED_S", 0)
    made = world(tmp_path, {"type": "s3", "bucket": "b", "endpoint_url": silent})
    holder = made.holder("worker")
    turn_until(made, holder, lambda: bool(stored(made)))
    assert "the process that copies failed" in stored(made)[0]["why"]
    holder.close()


def test_a_holder_that_cannot_copy_gives_way_to_a_daemon_elsewhere(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TEST_S3_SECRET")
    made = world(tmp_path, bucket.section)
    holder = made.holder("worker")

    def tried_twice() -> bool:
        found = holder.written.get(store_copies._KEY)
        return found is not None and found.tries >= 2

    turn_until(made, holder, tried_twice)
    assert holder.lease.term and not store_copies.should_lend(holder)
    files.make_folder(made.paths.daemon("login").parent)
    files.replace(made.paths.daemon("login"), Daemon(1, 1, "", files.now()).encode())
    made.clock.now += 11
    holder.lease.beat()
    advance(made.paths, holder)
    assert not holder.lease.term
    daemon = made.holder("daemon")
    assert advance(made.paths, daemon).held
    daemon.close()


def test_the_last_copies_are_made_once_all_is_over_with_the_report(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
) -> None:
    made = world(tmp_path, bucket.section)
    assert store_copies.settle(made.paths) == "" and not bucket.names()  # it is open
    made.holder().close()
    Closed("COMPLETED", "", 1, files.now()).write_once(made.paths.closed)
    assert store_copies.settle(made.paths, stop=lambda: True) != ""
    assert store_copies.settle(made.paths) == ""
    assert "paper-0001/report.html" in bucket.names() and len(bucket.names()) == 4
    assert b"<section" in bucket.read("paper-0001/report.html")
