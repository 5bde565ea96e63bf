"""Versions of models: what they hold, that nothing changes them, and how they are found."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from hpcdet import checkpoint
from hpcdet.checkpoint.keep import retention
from hpcdet.errors import ConfigError, IntegrityError, NotFound, Unavailable, UsageError
from hpcdet.registry import (
    add_version,
    model_card,
    model_events,
    registered_models,
    registry_changes,
    registry_place,
    version_files,
    version_views,
)
from hpcdet.registry.model_names import ModelReference, reference
from hpcdet.registry.version_check import all_of, check
from hpcdet.registry.version_views import Condition
from hpcdet.store.config import resolved_config
from hpcdet.store.fs import files as stored
from tests import TOP, disks
from tests.builders import Builder
from tests.registry.models import added, content, files, flip, source, trained, tree, version


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return trained(tmp_path_factory.mktemp("trained") / "digits-7f3a", trials=2)


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return tmp_path / "registry"


def test_a_version_holds_the_checkpoint_and_what_made_it(whole: Builder, registry: Path) -> None:
    made = added(registry, whole, semantic="1.4.0")
    assert (made.number, made.name) == (1, "model:digits:1")
    view = version_views.view(version(registry))
    assert view == version_views.view(made) and view.path == str(made.checkpoint)
    assert (view.experiment, view.trial, view.step) == ("digits-7f3a", 1, 20)
    assert view.metrics == {"validation_loss": 0.2, "accuracy": 0.8}
    assert view.hyperparameters == {"hidden": 32, "optimizer": {"lr": 0.1}, "bias": False}
    assert view.digest == checkpoint.verify(source(whole).folder).digest == content(made.checkpoint)
    assert (view.state, view.semantic, view.aliases) == ("active", "1.4.0", [])
    there = tree(made.paths.code)
    assert there == tree(whole.paths.code) and "lib/data.py" in there
    assert made.paths.config.read_bytes() == whole.paths.config.read_bytes()
    assert check(made).state == "valid"
    for path in files(made):  # nobody else reads what is made
        assert path.stat().st_mode & 0o077 == 0 or path.suffix == ".h5"
        assert path.lstat().st_uid == os.getuid()


def test_data_are_linked_in_a_private_registry_and_copied_in_a_shared_one(
    whole: Builder, registry: Path, tmp_path: Path
) -> None:
    [shard] = source(whole).folder.glob("*.h5")
    mine = added(registry, whole).checkpoint / shard.name
    assert mine.samefile(shard)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    theirs = added(shared, whole).checkpoint / shard.name
    assert not theirs.samefile(shard) and theirs.read_bytes() == shard.read_bytes()
    assert theirs.stat().st_mode & 0o777 == 0o640
    assert (shared / "digits" / "events").stat().st_mode & 0o7777 == 0o3770
    assert (shared / "digits" / "versions" / "1").stat().st_mode & 0o7777 == 0o2750


def test_everybody_may_not_write_into_a_registry(whole: Builder, registry: Path) -> None:
    registry.mkdir()
    registry.chmod(0o777)
    with pytest.raises(ConfigError, match="everybody may write"):
        added(registry, whole)
    assert list(registry.iterdir()) == []


def test_versions_outlive_retention_and_their_experiment(tmp_path: Path, registry: Path) -> None:
    built = trained(tmp_path / "root" / "digits-7f3a")
    first, last = added(registry, built, 10), added(registry, built, 30)
    before = [tree(one.paths.root) for one in (first, last)]
    rules = retention.RetentionRules.of(resolved_config.load(built.paths.config))
    swept = retention.sweep(built.paths, rules, 1, 1, 0)
    assert "00000010.g1" in swept and not source(built, 10).folder.exists()
    shutil.rmtree(built.paths.root)
    assert [tree(one.paths.root) for one in (first, last)] == before
    assert [one.state for one in all_of(registry, "digits")] == ["valid", "valid"]
    loaded = checkpoint.load(version(registry, "digits:1").checkpoint)
    assert loaded.shared["step"] == 10
    of_version = add_version.CheckpointSource(first.paths, 1, first.checkpoint)
    again = add_version.add(registry, "kept", of_version, "", content)
    assert again.record.experiment == "digits-7f3a" and again.record.metrics == first.record.metrics
    assert again.record.source == first.record.source and check(again).state == "valid"


def test_a_damaged_or_vanished_source_makes_no_version(tmp_path: Path, registry: Path) -> None:
    built = trained(tmp_path / "digits-7f3a")
    [shard] = source(built, 20).folder.glob("*.h5")
    flip(shard)
    with pytest.raises(IntegrityError):
        added(registry, built, 20)
    with pytest.raises(IntegrityError, match="no checkpoint"):
        added(registry, built, 25)
    next(source(built, 30).folder.glob("*.h5")).unlink()
    with pytest.raises(NotFound, match="just been removed"):
        added(registry, built, 30)
    with pytest.raises(NotFound, match="no such model"):
        version(registry)
    assert list((registry / "digits" / "versions").iterdir()) == []
    assert added(registry, built, 10).number == 1


def test_a_flipped_byte_is_found_in_each_file(whole: Builder, registry: Path) -> None:
    made = added(registry, whole)
    names = {path.relative_to(made.paths.root).as_posix() for path in files(made)}
    assert {"version.json", "files.json", "experiment.yaml", "code/lib/data.py"} <= names
    for path in files(made):
        if path.is_symlink():
            continue
        before = path.read_bytes()
        if path.suffix == ".h5":  # a link of another test's
            path.unlink()
            path.write_bytes(before)
        flip(path)
        found = check(version_of(registry))
        assert found.state == "damaged" and path.name in found.errors[0], path
        path.write_bytes(before)
        assert check(version_of(registry)).state == "valid"
    (made.paths.code / "same.py").unlink()
    (made.paths.code / "same.py").symlink_to("/etc/passwd")
    (made.paths.code / "more.py").write_text("")
    found = check(version_of(registry))
    assert [error.partition(":")[0] for error in found.errors] == ["code/more.py", "code/same.py"]


def version_of(registry: Path) -> registered_models.Version:
    """The first version of the model, whose record is not read."""
    model = registered_models.model(registry, "digits")
    return registered_models.Version(model, model.versions[1])


def test_a_changed_missing_or_exchanged_event_is_found(whole: Builder, registry: Path) -> None:
    added(registry, whole)
    for text in ("one", "two"):
        registry_changes.note(registry, ModelReference("digits"), text)
    events = sorted((registry / "digits" / "events").iterdir())
    for path in events:
        before = path.read_bytes()
        flip(path)
        with pytest.raises(IntegrityError, match=r"written|JSON|missing"):
            registered_models.model(registry, "digits")
        path.write_bytes(before)
    before = events[1].read_bytes()
    events[1].unlink()
    with pytest.raises(IntegrityError, match="event 2 is missing"):
        registered_models.model(registry, "digits")
    old = json.loads(before)
    forged = model_events.ModelEvent.decode({**old, "text": "forged"})
    events[1].write_bytes(stored.canonical(forged.sealed()) + b"\n")
    with pytest.raises(IntegrityError, match="does not follow"):
        registered_models.model(registry, "digits")
    events[1].write_bytes(before)
    assert [one.text for one in registered_models.model(registry, "digits").notes] == ["one", "two"]


def test_no_name_leads_out_of_a_registry(whole: Builder, registry: Path) -> None:
    added(registry, whole)
    (registry / "inner").mkdir()
    assert registered_models.model(registry, "digits").there
    for name in ("../digits", str(registry / "digits"), "x" * 300, ".", ""):
        with pytest.raises(NotFound, match="no such model"):
            registered_models.model(registry / "inner", name)


def test_a_damaged_model_costs_a_list_one_warning(whole: Builder, registry: Path) -> None:
    added(registry, whole)
    add_version.add(registry, "other", source(whole), "", content)
    flip(registry / "digits" / "events" / "000001.json")
    found = version_views.newest(registry)
    assert [row.model for row in found.items] == ["other"]
    assert len(found.warnings) == 1 and found.warnings[0].startswith("digits is left out")


def test_semantic_versions_are_unique_and_found_by_ranges(whole: Builder, registry: Path) -> None:
    for semantic in ("1.4.0", "1.10.0", "1.9.0", "2.0.0-rc.1"):
        added(registry, whole, semantic=semantic)
    assert version(registry, "digits@^1.4").record.semantic == "1.10.0"
    assert version(registry, "digits@~1.9").number == 3
    assert version(registry, "digits@1.4.0").number == 1
    with pytest.raises(NotFound, match="no version fits"):
        version(registry, "digits@^2")
    with pytest.raises(UsageError, match=r"version 1 has it"):
        added(registry, whole, semantic="1.4.0+again")
    registry_changes.remove(registry, reference("digits:1"))
    with pytest.raises(UsageError, match=r"version 1 has it"):
        added(registry, whole, semantic="1.4.0")
    assert added(registry, whole).number == 5


def test_an_alias_moves_and_keeps_its_version(whole: Builder, registry: Path) -> None:
    for step in LOSS_STEPS:
        added(registry, whole, step)
    registry_changes.set_alias(registry, reference("digits:1"), "production")
    registry_changes.set_alias(registry, reference("digits:2"), "production")
    assert version(registry, "digits@production").number == 2
    for change in (registry_changes.remove, registry_changes.archive):
        with pytest.raises(UsageError, match="has the alias production"):
            change(registry, reference("digits:2"))
        with pytest.raises(UsageError, match="has the alias production"):
            change(registry, reference("digits"))
    assert registry_changes.remove(registry, reference("digits:1")).there[0].number == 2
    assert not (registry / "digits" / "versions" / "1").exists()
    with pytest.raises(NotFound, match="was removed"):
        version(registry, "digits:1")
    with pytest.raises(NotFound, match="was removed"):
        registry_changes.set_alias(registry, reference("digits:1"), "old")
    registry_changes.remove_alias(registry, "digits", "production")
    with pytest.raises(NotFound, match="no alias"):
        registry_changes.remove_alias(registry, "digits", "production")
    registry_changes.remove(registry, reference("digits"))
    with pytest.raises(NotFound, match="no such model"):
        version(registry)
    assert added(registry, whole).number == 4  # numbers are not used again


LOSS_STEPS = (10, 20, 30)


def test_archived_versions_are_hidden_and_kept(whole: Builder, registry: Path) -> None:
    for step in LOSS_STEPS:
        added(registry, whole, step, semantic=f"1.{step}.0")
    registry_changes.archive(registry, reference("digits:3"))
    assert version(registry, "digits").number == 2 == version(registry, "digits@^1").number
    assert version(registry, "digits:3").standing.archived
    with pytest.raises(UsageError, match="archived"):
        registry_changes.set_alias(registry, reference("digits:3"), "x")
    registry_changes.archive(registry, reference("digits"))
    assert version_views.newest(registry).items == []
    assert [row.version for row in version_views.newest(registry, archived=True).items] == [3]
    with pytest.raises(UsageError, match="model is archived"):
        added(registry, whole)
    registry_changes.archive(registry, reference("digits"), undo=True)
    registry_changes.archive(registry, reference("digits:3"), undo=True)
    assert version(registry).number == 3


def test_labels_and_notes_of_versions_and_models(whole: Builder, registry: Path) -> None:
    added(registry, whole), added(registry, whole)
    registry_changes.label(registry, reference("digits"), ["vision"])
    registry_changes.label(registry, reference("digits:2"), ["paper", "draft"])
    count = len(registry_changes.label(registry, reference("digits:2"), ["paper"]).events)
    after = registry_changes.label(registry, reference("digits:2"), [], ["draft"])
    assert len(after.events) == count + 1  # nothing to do is no event
    registry_changes.note(registry, reference("digits:2"), "0.2 below\nthe paper")
    first, second = version_views.versions(registry, "digits").items
    assert (first.labels, second.labels) == (["vision"], ["vision", "paper"])
    assert [note.text for note in second.notes] == ["0.2 below\nthe paper"] and not first.notes
    for bad in ("", "a,b", "x" * 201, "a\nb"):
        with pytest.raises(UsageError):
            registry_changes.label(registry, reference("digits"), [bad])
    with pytest.raises(UsageError, match="empty"):
        registry_changes.note(registry, reference("digits"), " \n")


def test_the_best_by_the_searches_own_order(whole: Builder, registry: Path) -> None:
    for step in LOSS_STEPS:
        added(registry, whole, step)
    found, value = version_views.best(registry, "digits")
    assert (found.number, value) == (2, 0.2)
    assert version_views.best(registry, "digits", smaller=False)[0].number == 1
    with pytest.raises(UsageError, match="order of accuracy"):
        version_views.best(registry, "digits", "accuracy")
    assert version_views.best(registry, "digits", "accuracy", smaller=False)[0].number == 2
    with pytest.raises(NotFound, match="no version has a value of f1"):
        version_views.best(registry, "digits", "f1", smaller=False)
    registry_changes.archive(registry, reference("digits:2"))
    assert version_views.best(registry, "digits")[0].number == 3


def test_lists_are_sorted_and_filtered_by_what_is_recorded(whole: Builder, registry: Path) -> None:
    for step, trial in ((10, 1), (20, 1), (20, 2)):
        added(registry, whole, step, trial)
    rows = version_views.versions(registry, "digits").items

    def fit(text: str) -> list[int]:
        return [row.version for row in version_views.fitting(rows, [Condition.of(text)])]

    registry_changes.label(registry, reference("digits:1"), ["paper"])
    rows = version_views.versions(registry, "digits").items
    assert (fit("hidden=32"), fit("optimizer.lr=0.1"), fit("hidden=33")) == ([1, 2], [1, 2, 3], [3])
    assert (fit("labels=paper"), fit("step=10"), fit("validation_loss=0.2")) == ([1], [1], [2])
    assert (fit("hyperparameters.hidden=33"), fit("metrics.validation_loss=0.2")) == ([3], [2])
    assert (fit("bias=false"), fit("bias=0")) == ([1, 2, 3], [])
    for text in ("hidden", "=3"):
        with pytest.raises(UsageError, match="no condition"):
            Condition.of(text)
    with pytest.raises(UsageError, match="no version has a value of hiden") as told:
        version_views.newest(registry, conditions=[Condition.of("hiden=33")])
    assert "accuracy, bias, hidden, optimizer, validation_loss" in told.value.hint

    def order(key: str) -> list[int]:
        return [row.version for row in version_views.ordered(rows, key)]

    assert order("validation_loss") == [2, 3, 1] and order("-validation_loss") == [1, 3, 2]
    assert order("-version") == [3, 2, 1] and order("hidden")[-1] == 3
    odd = dataclasses.replace(rows[0], version=9, metrics={"validation_loss": "NaN"})
    listed = version_views.ordered([odd, *rows], "-validation_loss")
    assert [row.version for row in listed] == [1, 3, 2, 9]  # what has no value comes last
    with pytest.raises(UsageError, match="no version has a value of f1"):
        order("f1")


def test_a_copy_is_verified_on_its_way(whole: Builder, registry: Path, tmp_path: Path) -> None:
    made = added(registry, whole)
    to = tmp_path / "mine"
    size = version_files.get(made.paths.root, made.record.files, made.checkpoint, to)
    assert tree(to) == tree(made.checkpoint) and size == sum(p.stat().st_size for p in to.iterdir())
    with pytest.raises(UsageError, match="exists"):
        version_files.get(made.paths.root, made.record.files, made.checkpoint, to)
    manifest = made.checkpoint / "MANIFEST.json"
    flip(manifest)
    with pytest.raises(IntegrityError, match="not what was written"):
        version_files.get(made.paths.root, made.record.files, made.checkpoint, tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "registry"]


@pytest.mark.parametrize(
    "names",
    [["../../../home/evil.pth"], ["/evil"], ["code/../evil"], ["./evil"], ["link", "link/evil"]],
)
def test_a_forged_list_writes_nothing_outside_of_a_copy(tmp_path: Path, names: list[str]) -> None:
    root, home = tmp_path / "registry" / "digits" / "versions" / "1", tmp_path / "home"
    home.mkdir()
    (home / "evil.pth").write_text("import os")  # where the list's path leads to from the version
    root.mkdir(parents=True)
    (root / "link").symlink_to(home)
    (root / "evil").write_text("import os")
    digests = {name: [*version_files.measured(root / Path(name).name)] for name in ("evil", "link")}
    known = {name: digests.get(Path(name).name, digests["evil"]) for name in names}
    data = stored.canonical({"schema": 1, "files": known})
    (root / version_files.LIST).write_bytes(data)
    to = tmp_path / "ada" / "a" / "b" / "copy"
    with pytest.raises(IntegrityError, match="no list of files in the version"):
        version_files.get(root, blake3(data).hexdigest(), root, to)
    assert not to.exists() and not (tmp_path / "ada").exists()
    [said] = version_files.problems(root, blake3(data).hexdigest())
    assert "no list" in said


def test_removal_follows_no_links(tmp_path: Path) -> None:
    root, mine = tmp_path / "versions" / "1", tmp_path / "mine" / "1" / "checkpoints" / "10"
    for folder in (root, mine):
        folder.mkdir(parents=True)
    manifest = mine / "MANIFEST.json"
    manifest.touch()
    (root / "trials").symlink_to(tmp_path / "mine")
    version_files.remove(root)
    assert manifest.exists() and not root.exists()


def test_on_a_full_disk_nothing_is_added_and_it_is_said(whole: Builder, tmp_path: Path) -> None:
    with disks.small_disk(tmp_path / "disk", megabytes=1) as why_not:
        if why_not:
            pytest.skip(f"no small file system can be mounted here: {why_not}")
        registry = tmp_path / "disk" / "registry"
        first = added(registry, whole)
        assert not first.checkpoint.samefile(source(whole).folder)
        before = tree(registry)
        with disks.full(tmp_path / "disk"), pytest.raises(Unavailable, match="No space left"):
            added(registry, whole)
        assert tree(registry) == before
        with disks.full(tmp_path / "disk"), pytest.raises(Unavailable, match="No space left"):
            registry_changes.note(registry, reference("digits"), "x" * 9000)
        assert tree(registry) == before and added(registry, whole).number == 2


def test_leftovers_of_a_kill_go_after_a_day(
    whole: Builder, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added(registry, whole)
    left = registry / "digits" / "versions" / "2"
    left.mkdir()
    assert added(registry, whole).number == 3 and left.is_dir()
    monkeypatch.setattr(add_version, "ABANDONED_S", -1.0)
    assert added(registry, whole).number == 4 and not left.exists()
    assert [one.number for one in registered_models.model(registry, "digits").there] == [1, 3, 4]


def test_the_card_is_read_by_hugging_faces_library(whole: Builder, registry: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    added(registry, whole, semantic="1.4.0")
    registry_changes.set_alias(registry, reference("digits:1"), "production")
    labels = ["license=mit", "language=de", "language=en", "pipeline_tag=image-classification"]
    registry_changes.label(registry, reference("digits:1"), [*labels, "a: [b", "---"])
    registry_changes.note(registry, reference("digits"), "| <script>x</script>\n# not a title")
    text = model_card.card(version(registry))
    data = hub.ModelCard(text).data.to_dict()
    assert data["license"] == "mit" and data["language"] == ["de", "en"]
    assert data["pipeline_tag"] == "image-classification" and data["library_name"] == "pytorch"
    assert data["tags"] == ["hpcdet", "a: [b", "---"]
    assert data["metrics"] == ["accuracy", "validation_loss"]
    assert "<script" not in text and "<b>" not in text and "\n# not a title" not in text
    for word in ("1.4.0", "production", "| validation_loss | 0.2 |", "optimizer.lr", "digits-7f3a"):
        assert word in text
    assert text == model_card.card(version(registry))  # from the record alone


def test_where_the_registry_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(registry_place.VARIABLE, raising=False)
    assert registry_place.folder(tmp_path) == tmp_path / "registry"
    assert registry_place.folder(tmp_path, Path("/project/models")) == Path("/project/models")
    monkeypatch.setenv(registry_place.VARIABLE, str(tmp_path / "mine"))
    assert registry_place.folder(tmp_path, Path("/project/models")) == tmp_path / "mine"
    assert registered_models.names(tmp_path / "mine") == []


def test_the_example_of_the_guide(whole: Builder, registry: Path) -> None:
    added(registry, whole, 10), added(registry, whole, 20)
    text = (TOP / "docs" / "guides" / "registry.md").read_text()
    _, code = text.split("```python\n")
    found: dict[str, Any] = {}
    exec(code.partition("```")[0].replace("/project/vision/models", str(registry)), found)
    assert (found["loss"], found["folder"]) == (0.2, version(registry, "digits:2").checkpoint)
    assert version(registry, "digits@production").number == 2


def test_only_a_models_folder_makes_a_version(whole: Builder, registry: Path) -> None:
    made = added(registry, whole)
    assert registered_models.of_path(made.checkpoint) == made.paths.root
    (registry.parent / "version.json").write_text("{}")  # of anything else
    (registry.parent / "versions" / "1").mkdir(parents=True)
    (registry.parent / "versions" / "1" / "version.json").write_text("{}")
    for path in (registry / "digits", registry.parent / "versions" / "1" / "x"):
        assert registered_models.of_path(path) is None
