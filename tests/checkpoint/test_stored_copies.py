"""Copies of kept checkpoints in an object store: moto's server, which is a whole S3."""

from __future__ import annotations

import io
import os
import signal
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint import RetentionRules
from hpcdet.checkpoint.__main__ import main as checkpoint_main
from hpcdet.checkpoint.keep import stored_copies
from hpcdet.checkpoint.keep.stored_copies import CopyRound, bring_up_to_date
from hpcdet.errors import ConfigError, HpcdetError, IntegrityError, NotFound, Unavailable
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.fs import files
from hpcdet.store.objects import object_store, store_place
from hpcdet.store.objects.copy_records import CopyRecords
from hpcdet.store.objects.object_store import ObjectStore
from hpcdet.store.trials import pins
from tests import intruders
from tests.builders import Builder
from tests.object_stores import SECRET, Bucket, bucket, endpoint  # noqa: F401

RULES = RetentionRules(trial_best=1, trial_latest=1)
CAPSULE = "x-0001/capsule.tar.gz"


def experiment(folder: Path, trials: int = 1) -> ExperimentPaths:
    built = Builder(folder / "x-0001")
    for _ in range(trials):
        built.trial()
    return built.paths


def save(trial: TrialPaths, step: int, metric: float | None = None, kind: str = "kept") -> Path:
    folder = trial.checkpoint(step, 1)
    state = {"w": torch.full((200,), float(step)), "step": step}
    checkpoint.save(folder, state, meta={"metric": metric, "kind": kind})
    return folder


def steps(bucket: Bucket) -> set[tuple[int, int]]:  # noqa: F811
    """Trials and steps that have a manifest in the bucket."""
    found = [key.split("/") for key in bucket.names() if key.endswith("MANIFEST.json")]
    return {(int(parts[2]), int(parts[4].partition(".")[0])) for parts in found}


def all_whole(bucket: Bucket, folder: Path) -> None:  # noqa: F811
    """Whatever has a manifest in the bucket is a checkpoint, of which every byte is right."""
    for key in bucket.names():
        if key.endswith("MANIFEST.json"):
            url = f"{bucket.place.url}/{key.removesuffix('/MANIFEST.json')}"
            target = folder / key.replace("/", "-")
            stored_copies.get(ObjectStore(store_place.of_url(url, bucket.place)), target)
            checkpoint.verify(target)


def test_what_the_rules_keep_is_copied_verified_and_dropped_by_them(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
) -> None:
    paths = experiment(tmp_path)
    store, trial = ObjectStore(bucket.place), paths.trial(1)
    save(trial, 1, 0.1)
    save(trial, 2, 0.3)
    save(trial, 3, kind="resume")
    done = bring_up_to_date(paths, RULES, store)
    assert done == CopyRound(["capsule", "1/00000001.g1", "1/00000002.g1"])
    assert steps(bucket) == {(1, 1), (1, 2)}
    assert bring_up_to_date(paths, RULES, store) == CopyRound()  # nothing is sent twice

    save(trial, 4, 0.05)  # the best and the newest by now
    checkpoint.sweep(paths, RULES, 1, 1, resume=0)
    done = bring_up_to_date(paths, RULES, store)
    assert done.dropped == ["1/00000001.g1", "1/00000002.g1"]
    prefix = "x-0001/trials/0001/checkpoints/00000004.g1/"
    assert {key for key in bucket.names() if key != CAPSULE} == {
        f"{prefix}MANIFEST.json",
        f"{prefix}rank-00000-of-00001.h5",
    }
    all_whole(bucket, tmp_path)
    assert list(CopyRecords.of(paths).copied()) == [(1, "00000004.g1")]
    assert not CopyRecords.of(paths).begun()


def test_a_copy_outlives_a_purge_and_goes_once_another_is_better(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
) -> None:
    paths = experiment(tmp_path)
    store, trial = ObjectStore(bucket.place), paths.trial(1)
    folder = save(trial, 1, 0.1)
    bring_up_to_date(paths, RULES, store)
    (folder / "MANIFEST.json").unlink()  # as scratch is purged
    assert bring_up_to_date(paths, RULES, store) == CopyRound()
    assert steps(bucket) == {(1, 1)}
    save(trial, 2, 0.2)
    bring_up_to_date(paths, RULES, store)
    assert steps(bucket) == {(1, 1), (1, 2)}  # that one is the best still
    save(trial, 3, 0.01)
    bring_up_to_date(paths, RULES, store)
    assert steps(bucket) == {(1, 3)}


def test_what_is_pinned_is_copied_whatever_the_rules_say(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
) -> None:
    paths = experiment(tmp_path)
    folder = save(paths.trial(1), 1, kind="resume")
    pins.pin(paths.trial(1), folder.name)
    bring_up_to_date(paths, RULES, ObjectStore(bucket.place))
    assert steps(bucket) == {(1, 1)}


def test_the_capsule_has_what_a_repetition_needs_and_no_secret(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
) -> None:
    paths = experiment(tmp_path)
    paths.secrets.write_text('{"checkpoint_storage.secret_key":"hidden"}')
    store = ObjectStore(bucket.place)
    bring_up_to_date(paths, RULES, store)
    first = bucket.read(CAPSULE)
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        names = {name.removeprefix("x-0001/") for name in tar.getnames()}
    assert names == {"experiment.yaml", "site.yaml", "provenance.json", "code/model_def.py"}
    paths.fingerprints.mkdir()
    paths.fingerprint("f" * 64).write_text("{}")
    assert bring_up_to_date(paths, RULES, store).copied == ["capsule"]
    assert bucket.read(CAPSULE) != first


def test_a_store_that_does_not_answer_has_all_wait_and_nothing_dropped(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
) -> None:
    paths = experiment(tmp_path)
    save(paths.trial(1), 1, 0.1)
    bring_up_to_date(paths, RULES, ObjectStore(bucket.place))
    save(paths.trial(1), 2, 0.01)
    options = {**bucket.place.options, "endpoint_url": "http://127.0.0.1:9"}
    away = store_place.StorePlace("s3", bucket.place.path, options, (SECRET,))
    done = bring_up_to_date(paths, RULES, ObjectStore(away))
    assert done.waiting == ["1/00000002.g1"] and "127.0.0.1:9" in done.why
    assert SECRET not in done.why and not done.dropped
    assert bring_up_to_date(paths, RULES, ObjectStore(bucket.place)).copied == ["1/00000002.g1"]
    assert steps(bucket) == {(1, 2)}


def test_an_object_that_is_not_what_was_sent_is_no_copy(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = experiment(tmp_path)
    save(paths.trial(1), 1, 0.1)
    send = ObjectStore._send

    def damaging(self: ObjectStore, source: Path, key: str, size: int) -> None:
        if key.endswith(".h5"):
            other = tmp_path / "other"
            data = bytearray(source.read_bytes())
            data[len(data) // 2] ^= 1
            other.write_bytes(data)
            source = other
        send(self, source, key, size)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "_send", damaging)
        done = bring_up_to_date(paths, RULES, ObjectStore(bucket.place))
    assert done.waiting == ["1/00000001.g1"] and "not what was sent" in done.why
    assert not steps(bucket) and not CopyRecords.of(paths).copied()
    bring_up_to_date(paths, RULES, ObjectStore(bucket.place))
    assert steps(bucket) == {(1, 1)}
    all_whole(bucket, tmp_path)


def test_a_damaged_checkpoint_is_not_copied(tmp_path: Path, bucket: Bucket) -> None:  # noqa: F811
    paths = experiment(tmp_path)
    folder = save(paths.trial(1), 1, 0.1)
    file = folder / "rank-00000-of-00001.h5"
    data = bytearray(file.read_bytes())
    data[-1000] ^= 1
    file.write_bytes(data)
    done = bring_up_to_date(paths, RULES, ObjectStore(bucket.place))
    assert done.waiting == ["1/00000001.g1"] and not steps(bucket)


def test_of_two_holders_the_one_whose_term_is_over_removes_and_counts_nothing(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
) -> None:
    paths = experiment(tmp_path)
    save(paths.trial(1), 1, 0.1)
    bring_up_to_date(paths, RULES, ObjectStore(bucket.place))
    save(paths.trial(1), 2, 0.01)
    with pytest.raises(stored_copies.Superseded):
        bring_up_to_date(paths, RULES, ObjectStore(bucket.place), lambda: False)
    assert steps(bucket) == {(1, 1)}  # without its manifest the other one is none
    bring_up_to_date(paths, RULES, ObjectStore(bucket.place))
    assert steps(bucket) == {(1, 2)}


def test_two_holders_at_once_leave_what_one_would(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
) -> None:
    paths = experiment(tmp_path, 2)
    for trial in (1, 2):
        save(paths.trial(trial), 1, 0.1)
        save(paths.trial(trial), 2, 0.3)
    failed: list[str] = []

    def act() -> None:
        failed.append(bring_up_to_date(paths, RULES, ObjectStore(bucket.place)).why)

    threads = [threading.Thread(target=act) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == ["", ""]
    assert steps(bucket) == {(1, 1), (1, 2), (2, 1), (2, 2)}
    all_whole(bucket, tmp_path)
    assert not CopyRecords.of(paths).begun()


def _killed(action: Callable[[], object], at: int) -> bool:
    """Do something in a process that is killed at a point; True if there was such a point."""
    pid = os.fork()
    if not pid:
        seen = 0

        def point() -> None:
            nonlocal seen
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)

        def stepped(owner: Any, name: str) -> None:
            real = getattr(owner, name)

            def after_a_point(*arguments: Any, **named: Any) -> Any:
                point()
                return real(*arguments, **named)

            setattr(owner, name, after_a_point)

        try:
            for name in ("begin", "finish", "forget"):
                stepped(CopyRecords, name)
            make = ObjectStore.__init__

            def made(self: ObjectStore, place: Any) -> None:
                make(self, place, lambda more: point() if more == PART else None)
                for name in ("put_file", "rm_file"):
                    stepped(self._client, name)

            ObjectStore.__init__ = made  # type: ignore[assignment,method-assign]
            action()
        except BaseException:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


PART = 5 << 20
_place: Any = None


def test_a_kill_at_any_part_leaves_nothing_that_is_taken_for_whole(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_store, "_PART", PART)
    monkeypatch.setitem(globals(), "_place", bucket.place)
    paths, store = experiment(tmp_path), ObjectStore(bucket.place)
    records, at = CopyRecords.of(paths), 0
    save(paths.trial(1), 1, 0.3)
    bring_up_to_date(paths, RULES, store)
    folder = paths.trial(1).checkpoint(2, 1)
    large = {"w": torch.rand(2_700_000)}  # it is sent in parts
    checkpoint.save(folder, large, meta={"metric": 0.1, "kind": "kept"})
    was = {path: path.read_bytes() for path in records.root.iterdir()}
    objects = {key: bucket.read(key) for key in bucket.names()}
    more = True
    while more:
        at += 1
        more = _killed(lambda: bring_up_to_date(paths, RULES, ObjectStore(_place)), at)
        there = steps(bucket)
        _all_whole(bucket, tmp_path / f"at-{at}")
        assert {(key[0], int(key[1][:8])) for key in records.copied()} <= there
        done = bring_up_to_date(paths, RULES, store)
        assert (done.why, done.waiting) == ("", [])
        assert steps(bucket) == {(1, 2)} and not records.begun()
        assert len(bucket.names()) == 3  # with the capsule: nothing is left of the first
        for path in records.root.iterdir():
            path.unlink()
        for path, data in was.items():
            path.write_bytes(data)
        for key in bucket.names():
            bucket.client.delete_object(Bucket=bucket.name, Key=f"kept/here/{key}")
        for key, data in objects.items():
            bucket.write(key, data)
    assert at >= 12


def _all_whole(bucket: Bucket, folder: Path) -> None:  # noqa: F811
    """As ``all_whole``, by another client, which is there already."""
    for key in bucket.names():
        if key.endswith("MANIFEST.json"):
            above = key.removesuffix("/MANIFEST.json")
            target = folder / above.rpartition("/")[2]
            target.mkdir(parents=True)
            for each in bucket.names():
                if each.startswith(f"{above}/"):
                    (target / each.rpartition("/")[2]).write_bytes(bucket.read(each))
            checkpoint.verify(target)


@pytest.mark.parametrize("what", ["byte", "longer", "file", "manifest"])
def test_what_is_got_of_a_damaged_copy_is_an_error_and_no_folder(
    what: str,
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
) -> None:
    paths = experiment(tmp_path)
    save(paths.trial(1), 1, 0.1)
    bring_up_to_date(paths, RULES, ObjectStore(bucket.place))
    folder = "x-0001/trials/0001/checkpoints/00000001.g1"
    key = f"{folder}/rank-00000-of-00001.h5"
    if what in ("byte", "longer"):
        data = bytearray(bucket.read(key))
        data[-1000] ^= 1
        bucket.write(key, bytes(data) * (1 if what == "byte" else 2))
    else:
        key = f"{folder}/MANIFEST.json" if what == "manifest" else key
        bucket.client.delete_object(Bucket=bucket.name, Key=f"kept/here/{key}")
    place = store_place.of_url(f"{bucket.place.url}/{folder}", bucket.place)
    kind: type[HpcdetError] = NotFound if what == "manifest" else IntegrityError
    with pytest.raises(kind):
        stored_copies.get(ObjectStore(place), tmp_path / "mine")
    assert not [path for path in tmp_path.iterdir() if "mine" in path.name]


def test_nothing_is_removed_where_a_store_lists_what_lies_elsewhere(
    bucket: Bucket,  # noqa: F811
) -> None:
    """As one does that heeds no prefix."""
    for key in ("x/1/a", "x/1/first", "x/12/b", "others/c"):
        bucket.write(key, b"1")
    store = ObjectStore(bucket.place)
    find = store._client.find
    store._client.find = lambda _: find(bucket.place.path)
    with pytest.raises(Unavailable, match="not below it"):
        store.remove("x/1", "first")
    assert len(bucket.names()) == 4
    store._client.find = find
    store.remove("x/1", "first")
    assert bucket.names() == ["others/c", "x/12/b"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_config_of_another_user_says_nothing_about_secrets(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It could send the user's files to its own server, as the name of an access key."""
    paths = experiment(tmp_path)
    paths.config.unlink()
    taken = tmp_path / "private"
    taken.touch(0o600)
    taken.write_text("PRIVATE")
    section = bucket.section | {"access_key": {"file": str(taken)}}
    config = {"schema": 1, "name": "x", "checkpoint_storage": section}
    files.write_once(paths.config, resolved_config.dump(config))
    get = ["get", bucket.place.url, str(tmp_path / "mine"), "--store-of", str(paths.root)]
    assert checkpoint_main(get) == NotFound.exit_code, "one's own names a server and files"
    os.chown(paths.root, intruders.UID, -1)
    for command in (get, ["archive", bucket.place.url, "x", "y", *get[-2:]]):
        assert checkpoint_main(command) == ConfigError.exit_code
    assert checkpoint_main(["store", str(paths.root)]) == ConfigError.exit_code
    said = capsys.readouterr()
    assert "where your secrets go" in said.err and "PRIVATE" not in said.out + said.err


def test_a_package_that_is_not_there_is_named_with_its_extra(
    bucket: Bucket,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fsspec

    def missing(_: str) -> None:
        raise ImportError("no module named s3fs")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(Unavailable) as refused:
        ObjectStore(bucket.place)
    assert refused.value.hint == "pip install 'hpcdet[cloud]'"
