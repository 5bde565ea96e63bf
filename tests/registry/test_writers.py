"""Several users who write to one registry at once, and a kill at any write."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcdet.errors import HpcdetError, UsageError
from hpcdet.registry import add_version, registered_models, registry_changes, version_views
from hpcdet.registry.model_names import reference
from hpcdet.registry.version_check import all_of, check
from hpcdet.store.trials import manifests
from tests.builders import Builder
from tests.checkpoint.test_faults import killed_after
from tests.other_users import by
from tests.registry.models import added, source, trained, version

CALLS = ("link", "rename", "unlink", "chmod", "chown", "rmdir", "symlink")
GROUP, ADA, LEE = 54_400, 54_401, 54_402


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return trained(tmp_path_factory.mktemp("trained") / "digits-7f3a")


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return tmp_path / "registry"


def by_manifest(folder: Path) -> str:
    """The content digest that a manifest names; nothing is read for it."""
    return str(manifests.read(folder)["digest"])


def test_all_who_add_at_once_get_a_number_of_their_own(whole: Builder, registry: Path) -> None:
    def work(number: int) -> int:
        step = (10, 20, 30)[number % 3]
        return added(registry, whole, step, semantic=f"1.{number}.0").number

    with ThreadPoolExecutor(6) as pool:
        numbers = list(pool.map(work, range(6)))
    assert sorted(numbers) == list(range(1, 7))
    assert [one.state for one in all_of(registry, "digits")] == ["valid"] * 6
    model = registered_models.model(registry, "digits")
    assert [event.number for event in model.events] == list(range(1, 7))


def test_of_two_who_want_one_semantic_version_one_gets_it(whole: Builder, registry: Path) -> None:
    def work(_: int) -> str:
        try:
            return f"version {added(registry, whole, semantic='1.4.0').number}"
        except UsageError as error:
            return error.what.partition(" ")[0]

    with ThreadPoolExecutor(4) as pool:
        got = sorted(pool.map(work, range(4)))
    assert len([one for one in got if one == "version"]) == 3 and got[-1].startswith("version ")
    there = registered_models.model(registry, "digits").there
    assert [one.semantic.text for one in there if one.semantic] == ["1.4.0"]
    folders = [path.name for path in (registry / "digits" / "versions").iterdir()]
    assert folders == [str(there[0].number)]  # the others took theirs away


def test_an_alias_given_while_its_version_is_removed(whole: Builder, registry: Path) -> None:
    added(registry, whole), added(registry, whole)

    def alias() -> str:
        try:
            registry_changes.set_alias(registry, reference("digits:1"), "production")
        except HpcdetError as error:
            return error.what
        return "aliased"

    def remove() -> str:
        try:
            registry_changes.remove(registry, reference("digits:1"))
        except HpcdetError as error:
            return error.what
        return "removed"

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(alias), pool.submit(remove)
        got = {first.result(), second.result()}
    there = (registry / "digits" / "versions" / "1").exists()
    expected = (
        {"aliased", "it has the alias production"} if there else {"removed", "it was removed"}
    )
    assert got == expected


def test_everything_that_many_write_at_once_is_there(whole: Builder, registry: Path) -> None:
    added(registry, whole)

    def work(number: int) -> None:
        registry_changes.note(registry, reference("digits"), f"note {number}")
        registry_changes.label(registry, reference("digits:1"), [f"label {number}"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    [row] = version_views.newest(registry).items
    assert sorted(row.labels) == sorted(f"label {n}" for n in range(16))
    assert {note.text for note in row.notes} == {f"note {n}" for n in range(16)}


def test_a_kill_at_any_write_of_an_addition(whole: Builder, tmp_path: Path) -> None:
    alive = nth = 0
    seen: set[int] = set()
    while not alive:
        nth += 1
        registry = tmp_path / str(nth)

        def work(registry: Path = registry) -> None:
            add_version.add(registry, "digits", source(whole), "1.4.0", by_manifest)

        alive = not killed_after(nth, work, *CALLS)
        rows = version_views.newest(registry).items
        seen.add(len(rows))
        if rows:  # all of it is there, or nothing
            assert check(version(registry)).state == "valid", nth
            with pytest.raises(UsageError, match="version 1 has it"):
                added(registry, whole, semantic="1.4.0")
        elif nth % 5 == 0:  # and the next one is as if nothing had happened
            assert added(registry, whole, semantic="1.4.0").record.semantic == "1.4.0"
            assert [one.state for one in all_of(registry, "digits")] == ["valid"]
    assert seen == {0, 1} and nth > 30


def test_a_kill_at_any_write_of_a_change(whole: Builder, tmp_path: Path) -> None:
    before = tmp_path / "before"
    for _ in range(2):
        add_version.add(before, "digits", source(whole), "", by_manifest)
    alive = nth = 0
    seen: set[tuple[bool, bool]] = set()
    while not alive:
        nth += 1
        registry = Path(shutil.copytree(before, tmp_path / str(nth), symlinks=True))

        def work(registry: Path = registry) -> None:
            registry_changes.set_alias(registry, reference("digits:2"), "production")
            registry_changes.remove(registry, reference("digits:1"))

        alive = not killed_after(nth, work, *CALLS)
        model = registered_models.model(registry, "digits")
        state = (model.aliases == {"production": 2}, model.versions[1].removed)
        seen.add(state)
        assert [one.state for one in all_of(registry, "digits")] == ["valid"] * len(model.there)
        if state[1]:  # what a kill left of it goes with the next addition
            add_version.add(registry, "digits", source(whole), "", by_manifest)
            assert not (registry / "digits" / "versions" / "1").exists()
    assert seen == {(False, False), (True, False), (True, True)}


@pytest.fixture
def shared() -> Iterator[Path]:
    """A registry of a group, in a folder that its members reach."""
    if os.getuid() != 0:
        pytest.skip("becomes other users")
    with tempfile.TemporaryDirectory(prefix="hpcdet-test-") as top:
        Path(top).chmod(0o755)
        registry = Path(top) / "models"
        registry.mkdir()
        os.chown(registry, -1, GROUP)
        registry.chmod(0o2770)
        yield registry


def test_an_event_that_names_another_user_than_its_files_owner_says_so(
    whole: Builder, shared: Path
) -> None:
    """Who may write events may put any name into them; whose file it is, the system says."""
    added(shared, whole)
    registry_changes.note(shared, reference("digits:1"), "the best of all")
    [row] = version_views.newest(shared).items
    named = row.by
    os.chown(shared / "digits" / "events" / "000002.json", LEE, -1)
    [row] = version_views.newest(shared).items
    assert (row.by, row.notes[0].by) == (named, f"{named} (a file of user {LEE})")
    assert check(version(shared)).state == "valid"


def test_two_users_of_a_group_write_side_by_side(whole: Builder, shared: Path) -> None:
    root = shared.parent / "theirs"
    for uid in (ADA, LEE):
        folder = root / str(uid)
        folder.mkdir(parents=True)
        os.chown(folder, uid, uid)
    root.chmod(0o755)

    def ada() -> None:
        built = trained(root / str(ADA) / "digits-7f3a")
        made = added(shared, built, semantic="1.0.0")
        registry_changes.set_alias(shared, reference("digits:1"), "production")
        assert made.standing.by == f"user {ADA}"
        shutil.rmtree(built.paths.root)

    def lee() -> None:
        assert check(version(shared)).state == "valid"  # every byte of it is readable
        built = trained(root / str(LEE) / "digits-1c2d")
        assert added(shared, built, 30, semantic="1.1.0").number == 2
        registry_changes.note(shared, reference("digits:1"), "better than mine")
        registry_changes.label(shared, reference("digits:1"), ["paper"])
        registry_changes.set_alias(shared, reference("digits:2"), "production")
        with pytest.raises(UsageError, match="alone removes it"):
            registry_changes.remove(shared, reference("digits:1"))
        manifest = version(shared, "digits:1").checkpoint / "MANIFEST.json"
        for attack in (
            manifest.unlink,
            lambda: manifest.write_text(""),
            lambda: manifest.chmod(0o666),
        ):
            with pytest.raises(PermissionError):
                attack()
        first = shared / "digits" / "events" / "000001.json"
        with pytest.raises(PermissionError):
            first.unlink()  # the sticky bit leaves it to who wrote it
        with pytest.raises(PermissionError):
            first.rename(first.with_name("x"))

    assert by(ADA, ada, [GROUP]) == 0
    assert by(LEE, lee, [GROUP]) == 0
    [row] = version_views.newest(shared).items
    assert (row.by, row.aliases, row.version) == (f"user {LEE}", ["production"], 2)
    [first, _] = version_views.versions(shared, "digits").items
    assert first.labels == ["paper"] and [note.by for note in first.notes] == [f"user {LEE}"]

    def ada_again() -> None:
        registry_changes.remove(shared, reference("digits:1"))
        assert not (shared / "digits" / "versions" / "1").exists()

    assert by(ADA, ada_again, [GROUP]) == 0
    assert by(ADA + 7, lambda: registered_models.names(shared)) == 1  # of no such group
    for path in shared.rglob("*"):
        assert path.stat().st_mode & stat.S_IRWXO == 0 and path.stat().st_gid == GROUP, path
