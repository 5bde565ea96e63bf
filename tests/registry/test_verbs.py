"""``hpcdet registry``, and the names of versions where a checkpoint may stand."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from hpcdet import checkpoint
from hpcdet.checkpoint.__main__ import main as checkpoint_main
from hpcdet.cli import main
from hpcdet.cli.artefacts import model_arguments
from hpcdet.determined.pytorch import load_trial_from_checkpoint_path
from hpcdet.errors import ConfigError, IntegrityError, NotFound
from hpcdet.jobs.create import begin_from
from hpcdet.read.exports import checkpoint_process
from hpcdet.registry import version_files
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.names import REGISTERED
from hpcdet.store.trials import standing
from tests.builders import Builder
from tests.commands import Cli
from tests.registry.models import content, flip, trained, tree, version

VERBS = {
    *("ls", "versions", "show", "best", "add", "alias", "unalias", "label", "note"),
    *("archive", "rm", "verify"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return trained(tmp_path_factory.mktemp("trained") / "digits-7f3a", trials=2)


def in_this_process(arguments: Sequence[str], heard: Callable[[dict[str, Any]], None]) -> str:
    """What ``python -m hpcdet.checkpoint`` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        checkpoint_main(arguments)
    for line in printed.getvalue().splitlines():
        heard(json.loads(line))
    return ""


@pytest.fixture
def built(cli: Cli, whole: Builder, monkeypatch: pytest.MonkeyPatch) -> Builder:
    """An experiment whose checkpoints are read in this process."""
    monkeypatch.setattr(checkpoint_process, "run", in_this_process)
    shutil.copytree(whole.paths.root, cli.root / "digits-7f3a", symlinks=True)
    found = Builder.__new__(Builder)
    found.paths = type(whole.paths)(cli.root / "digits-7f3a")
    return found


def one(cli: Cli, *argv: object) -> dict[str, Any]:
    [item] = cli("registry", *argv, "-o", "json").items
    return item


def test_the_life_of_a_model(cli: Cli, built: Builder) -> None:
    assert "no models in" in cli("registry", "ls").err
    item = one(cli, "add", "digits", "digits-7f3a", "--best", "--version", "1.4.0")
    assert (item["id"], item["trial"], item["step"]) == ("model:digits:1", 1, 20)
    assert item["metrics"]["validation_loss"] == 0.2 and item["hyperparameters"]["hidden"] == 32
    assert one(cli, "add", "digits", "digits-7f3a/2", "10")["step"] == 10
    assert one(cli, "add", "digits", "digits-7f3a/2", "--latest")["step"] == 30
    folder = built.paths.trial(1).checkpoint(30, 1)
    assert one(cli, "add", "model:digits", folder)["version"] == 4
    one(cli, "alias", "digits:1", "production")
    one(cli, "label", "digits@production", "--add", "paper")
    one(cli, "note", "digits:1", "for the paper")
    shown = one(cli, "show", "model:digits@^1.4")
    assert (shown["aliases"], shown["labels"]) == (["production"], ["paper"])
    assert [note["text"] for note in shown["notes"]] == ["for the paper"]
    assert [row["version"] for row in cli("registry", "ls", "-o", "json").items] == [4]
    listed = cli("registry", "versions", "digits", "--sort", "validation_loss", "-o", "jsonl").out
    assert [json.loads(line)["version"] for line in listed.splitlines()] == [1, 4, 3, 2]
    assert len(cli("registry", "versions", "digits", "-o", "json").items) == 4
    some = cli("registry", "versions", "digits", "--where", "hidden=33", "-o", "id").out
    assert some.split() == ["model:digits:2", "model:digits:3"]
    assert one(cli, "best", "digits")["version"] == 1
    assert one(cli, "best", "digits", "--metric", "accuracy", "--larger")["version"] == 1
    assert one(cli, "archive", "digits@latest")["state"] == "archived"
    assert one(cli, "archive", "digits:4", "--undo")["state"] == "active"
    assert [row["state"] for row in cli("registry", "verify", "-o", "json").items] == ["valid"] * 4
    assert one(cli, "rm", "digits:4", "-n")["state"] == "active"
    assert one(cli, "rm", "digits:4", "-y")["state"] == "removed"
    assert one(cli, "unalias", "digits@production")["aliases"] == []
    assert len(cli("registry", "rm", "digits", "-y", "-o", "json").items) == 3
    assert "no models in" in cli("registry", "ls").err
    assert cli.checked == {f"registry.{verb}" for verb in VERBS}


def test_what_people_are_shown(cli: Cli, built: Builder) -> None:
    cli("registry", "add", "digits", "digits-7f3a", "--best")
    out = cli("registry", "show", "digits").out
    for word in ("model:digits:1", "digits-7f3a/1, step 20", "searcher.begin_from=model:digits:1"):
        assert word in out
    listed = cli("registry", "ls").out
    assert listed.splitlines()[1].split()[:2] == ["digits", "1"]
    assert "accuracy=0.8" in listed and "validation_loss=0.2" in listed, "no value is cut off"
    assert max(map(len, listed.splitlines())) <= 80
    assert cli("registry", "ls", "--where", "hidden=99").err.endswith("registry fits\n")
    assert cli("registry", "ls", "--no-header", "--fields", "id,by").out.split()[0] == (
        "model:digits:1"
    )
    text = cli("registry", "card", "digits").out
    assert text.startswith("---\nlibrary_name: pytorch\n") and "| hidden | 32 |" in text
    card = cli.root / "README.md"
    assert cli("registry", "card", "digits", "-o", card).out.strip() == str(card)
    assert card.read_text() == text
    assert "exists" in cli("registry", "card", "digits", "-o", card, code=2).err


BAD = [
    (2, "registry add Digits digits-7f3a --best"),
    (2, "registry add digits digits-7f3a --best --version 1.4"),
    (3, "registry add digits nothing-0000"),
    (3, "registry add digits digits-7f3a"),  # which of its trials
    (3, "registry add digits digits-7f3a/1 999"),
    (3, "registry add digits digits-7f3a/9"),
    (2, "registry add digits"),
    (2, "registry add known model:known 10"),
    (3, "registry add known model:unknown"),
    *[(3, f"registry {verb}") for verb in ("show digits", "versions digits", "best digits")],
    *[(3, f"registry {verb}") for verb in ("verify digits", "card digits", "get digits")],
    *[(3, f"registry {verb}") for verb in ("rm digits -y", "archive digits", "alias digits:1 x")],
    *[(3, f"registry {verb}") for verb in ("note digits x", "label digits --add x")],
    *[(3, f"registry {verb} known:7") for verb in ("show", "get", "card", "verify", "rm -n")],
    *[(3, f"registry {verb} known@no") for verb in ("show", "get", "card", "verify", "unalias")],
    *[(3, f"registry {verb} known@^9") for verb in ("show", "get", "card", "verify", "archive")],
    *[(2, f"registry {verb} known:x") for verb in ("show", "get", "card", "verify", "rm -n")],
    *[(2, f"registry {verb} a/../b") for verb in ("show", "get", "card", "verify", "versions")],
    (2, "registry alias known x"),
    (2, "registry alias known:1 latest"),
    (2, "registry alias known:1 1.4"),
    (2, "registry alias known:1 a/b"),
    (2, "registry unalias known:1"),
    (2, "registry unalias known"),
    (2, "registry unalias known@latest"),
    (2, "registry label known"),
    (2, "registry label known --add a,b"),
    (2, "registry note known:1 ''"),
    (2, "registry rm known"),  # nobody to ask
    (2, "registry rm known@kept -y"),
    (2, "registry archive known@kept"),
    (2, "registry ls --sort f1"),
    (2, "registry ls --where nonsense"),
    (2, "registry ls --where nonsense=1"),
    (2, "registry versions known --where nonsense=1"),
    (2, "registry ls --fields nonsense"),
    (2, "registry add known digits-7f3a --best --fields nonsense"),
    (2, "registry best known --metric accuracy"),
    (3, "registry best known --metric f1 --larger"),
    (2, "ckpt rm model:known -y"),
    (2, "ckpt pin model:known"),
    (2, "ckpt export model:known 10 -o x.pt"),
    (3, "ckpt verify model:known:7"),
    (3, "ckpt get model:unknown"),
]


def test_bad_input_of_each_verb(cli: Cli, built: Builder) -> None:
    cli("registry", "add", "known", "digits-7f3a", "--best")
    cli("registry", "alias", "known:1", "kept")
    registry = cli.root / "registry" / "known"
    before = tree(registry)
    for code, line in BAD:
        argv = [word.strip("'") for word in line.split(" ")]
        said = cli(*argv, code=code).err.splitlines()
        assert any(text.startswith("error: ") for text in said), (line, said)
        assert tree(registry) == before, line


def test_damage_is_exit_9(cli: Cli, built: Builder) -> None:
    cli("registry", "add", "digits", "digits-7f3a", "--best")
    cli("registry", "add", "digits", "digits-7f3a/2")
    folder = Path(one(cli, "show", "digits:1")["path"])
    [shard] = folder.glob("*.h5")
    data = shard.read_bytes()
    shard.unlink()  # the source has the same
    shard.write_bytes(data)
    flip(shard)
    ran = cli("registry", "verify", "digits", "-o", "json", code=9)
    assert [item["state"] for item in ran.items] == ["damaged", "valid"]
    assert "1 of 2 versions are damaged" in json.loads(ran.err)["error"]["message"]
    assert "written" in cli("registry", "get", "digits:1", "-o", cli.root / "x", code=9).err
    assert not (cli.root / "x").exists()
    cli("registry", "add", "other", "digits-7f3a", "--best")
    flip(cli.root / "registry" / "other" / "events" / "000001.json")
    (cli.root / "registry" / "empty").mkdir()  # as a kill leaves it
    items = cli("registry", "verify", "-o", "json", code=9).items
    found = [(item["model"], item["version"], item["state"]) for item in items]
    assert found == [
        ("digits", 1, "damaged"),
        ("digits", 2, "valid"),
        ("other", 0, "damaged"),
    ]
    flip(folder.parents[3] / "version.json")
    assert "written" in cli("registry", "show", "digits:1", code=9).err
    ran = cli("registry", "versions", "digits", "-o", "id")
    assert "warning: digits:1 is left out" in ran.err and ran.out == "model:digits:2\n"


def test_a_registry_that_cannot_be_written(
    cli: Cli, built: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cli.root / "file"
    file.write_text("")
    monkeypatch.setenv("HPCDET_REGISTRY", str(file / "below"))
    assert "error: " in cli("registry", "add", "digits", "digits-7f3a", "--best", code=5).err
    assert "no models" in cli("registry", "ls").err
    monkeypatch.setenv("HPCDET_REGISTRY", str(cli.root / "open"))
    (cli.root / "open").mkdir()
    (cli.root / "open").chmod(0o777)
    said = cli("registry", "add", "digits", "digits-7f3a", "--best", code=4).err
    assert "chmod o-w" in said


def test_the_registry_is_where_the_site_says(
    cli: Cli, built: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = Path(cli.root.parent, "no-config", "hpcdet", "sites")
    sites.mkdir(parents=True)
    text = (
        f"schema: 1\nname: here\nscheduler: local\npaths: {{registry: {cli.root.parent}/models}}\n"
    )
    (sites / "here.yaml").write_text(text)
    cli("--profile", "here", "registry", "add", "digits", "digits-7f3a", "--best")
    assert (cli.root.parent / "models" / "digits").is_dir()
    assert "no such model" in cli("registry", "show", "digits", code=3).err
    monkeypatch.setenv("HPCDET_REGISTRY", str(cli.root.parent / "models"))
    assert one(cli, "show", "digits")["version"] == 1


def test_versions_stand_where_checkpoints_may(cli: Cli, built: Builder, tmp_path: Path) -> None:
    cli("registry", "add", "digits", "digits-7f3a/1", "10")
    cli("registry", "add", "digits", "digits-7f3a/1", "30", "--version", "1.4.2")
    cli("registry", "alias", "digits:1", "production")
    [item] = cli("ckpt", "digest", "model:digits@production", "-o", "json").items
    assert item["digest"] == one(cli, "show", "digits:1")["digest"]
    cli("ckpt", "get", "model:digits@^1.4", "-o", tmp_path / "got")
    assert content(tmp_path / "got") == one(cli, "show", "digits:2")["digest"]
    cli("registry", "get", "digits:1", "-o", tmp_path / "also")
    assert content(tmp_path / "also") == item["digest"]


def test_versions_are_compared_with_each_other_and_with_trials(cli: Cli, built: Builder) -> None:
    one(cli, "add", "digits", "digits-7f3a/1", "20")
    one(cli, "add", "digits", "digits-7f3a/2", "30", "--version", "1.0.0")
    sides = ("model:digits:1", "model:digits@^1", "digits-7f3a/2")
    rows = {(row["what"], row["name"]): row for row in cli("compare", *sides, "-o", "json").items}
    names = ["model:digits:1", "model:digits:2", "digits-7f3a/2"]
    hidden = rows["hyperparameters", "hidden"]
    assert hidden["values"] == dict(zip(names, (32, 33, 33), strict=True)) and not hidden["same"]
    metric = rows["metric", "validation_loss"]["values"]
    assert metric == pytest.approx(dict(zip(names, (0.2, 0.4, 0.3), strict=True)))
    assert rows["metric", "steps"]["values"]["model:digits:1"] == 20
    shutil.rmtree(built.paths.root)  # versions stand by themselves
    assert cli("compare", *sides[:2], "--only-different", "-o", "json").items
    cli("compare", "model:digits:2", "model:digits@1.0.0", code=2)
    cli("compare", "model:digits:1", "model:digits:7", code=3)


def test_a_trial_resumes_from_a_version_of_its_own(cli: Cli, built: Builder) -> None:
    failed = trained(cli.root / "failed-1c2d", end="user_error")
    cli("registry", "add", "digits", "failed-1c2d/1", "10")
    cli("registry", "add", "digits", "digits-7f3a/1", "10")
    said = cli("resume", "failed-1c2d/1", "--from", "model:digits:1", "-n").out
    assert "00000010.g1" in said
    said = cli("resume", "failed-1c2d/1", "--from", "model:digits:2", "-n", code=2).err
    assert "is a checkpoint of digits-7f3a/1" in said and "searcher.begin_from" in said
    shutil.rmtree(failed.paths.trial(1).checkpoint(10, 1))
    said = cli("resume", "failed-1c2d/1", "--from", "model:digits:1", "-n", code=3).err
    assert "has 00000010.g1 no more" in said


def begun(text: str) -> Resolved:
    raw = {"searcher": {"name": "single", "metric": "loss", "begin_from": text}}
    return resolved_config.resolve({**raw, "hyperparameters": {"hidden": 32}})


def test_an_experiment_begins_from_a_version(cli: Cli, built: Builder, tmp_path: Path) -> None:
    cli("registry", "add", "digits", "digits-7f3a/1", "20")
    cli("registry", "alias", "digits:1", "production")
    shutil.rmtree(built.paths.root)
    found = begin_from.look(begun("model:digits@production"), cli.root)
    assert found is not None and found.step == 20
    placed = begin_from.placed({"searcher": {"begin_from": "model:digits@production"}}, found)
    assert placed["searcher"] == {
        "begin_from": "model:digits:1",  # aliases move
        "begin_at": {"batches": 20},
    }
    new = Builder(tmp_path / "new-1c2d")
    begin_from.give(found, new.paths)
    [name] = standing.checkpoints(new.paths.origin.trial(1))
    assert content(new.paths.origin.trial(1).checkpoints / name) == found.manifest["digest"]


def test_what_was_put_in_the_place_of_a_version_is_not_used(
    cli: Cli, built: Builder, tmp_path: Path
) -> None:
    cli("registry", "add", "digits", "digits-7f3a/1", "20")
    there = version(cli.root / "registry").checkpoint
    shutil.rmtree(there)
    state = {"models": [{"w": torch.zeros(64)}], "step": 20}
    checkpoint.save(there, state, meta={"kind": "kept", "batches": 20, "trial": 1})
    with pytest.raises(ConfigError, match="no whole checkpoint"):
        begin_from.look(begun("model:digits:1"), cli.root)
    with pytest.raises(IntegrityError, match="another checkpoint than was added"):
        load_trial_from_checkpoint_path("model:digits:1", trial_class=HeldTrial)  # type: ignore[arg-type]
    to = tmp_path / "exported.pt"
    said = cli("ckpt", "export", "model:digits:1", "-o", to, code=9).err
    assert "another checkpoint than was added" in said and not to.exists()


def test_nothing_else_is_done_with_a_version(cli: Cli, built: Builder) -> None:
    folder = Path(one(cli, "add", "digits", "digits-7f3a/1", "20")["path"]).parents[3]
    assert (folder / REGISTERED).is_file()
    before = tree(folder)
    for argv in (
        *(["pause"], ["cancel"], ["resume"], ["rm", "-y"], ["move", "--here"]),
        *(["archive"], ["tag", "--add", "x"], ["searcher", "run", "--once"]),
    ):
        said = cli(*argv, folder, code=2).err
        assert "version of a registered model" in said, argv
    assert tree(folder) == before
    [item] = cli("ckpt", "ls", folder, "-o", "json").items  # but it may be looked at
    assert item["state"] == "complete"


class Held(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(64))


class HeldTrial:
    def __init__(self, context: Any) -> None:
        self.hidden = context.get_hparam("hidden")
        self.model = context.wrap_model(Held())


def test_code_loads_a_version_by_its_name(cli: Cli, built: Builder) -> None:
    cli("registry", "add", "digits", "digits-7f3a/2", "20")
    shutil.rmtree(built.paths.root)
    trial = load_trial_from_checkpoint_path("model:digits@latest", trial_class=HeldTrial)  # type: ignore[arg-type]
    assert trial.hidden == 33 and torch.equal(trial.model.w, torch.full((64,), 0.2 + 0.1))
    with pytest.raises(NotFound, match="no such model"):
        load_trial_from_checkpoint_path("model:digit", trial_class=HeldTrial)  # type: ignore[arg-type]


def test_completion_asks_the_events_alone(cli: Cli, built: Builder) -> None:
    cli("registry", "add", "digits", "digits-7f3a", "--best")
    cli("registry", "add", "digits", "digits-7f3a", "--best")
    cli("registry", "alias", "digits:1", "production")

    def complete(text: str) -> list[str]:
        return model_arguments.complete(None, None, text)  # type: ignore[arg-type]

    assert complete("di") == ["digits"] and complete("x") == []
    assert complete("digits:") == ["digits:1", "digits:2"]
    assert complete("model:digits@p") == ["model:digits@production"]
    environ = {"_HPCDET_COMPLETE": "bash_complete", "COMP_WORDS": "hpcdet registry show digits@"}
    done = CliRunner().invoke(main.cli, env={**environ, "COMP_CWORD": "3"}, prog_name="hpcdet")
    assert done.output.split() == ["plain,digits@production"]


def test_a_real_process_verifies_what_is_added(cli: Cli, whole: Builder) -> None:
    folder = whole.paths.trial(1).checkpoint(20, 1)
    assert checkpoint_process.content_digest(folder) == content(folder)
    item = one(cli, "add", "digits", folder)
    assert item["digest"] == content(folder)
    root = Path(item["path"]).parents[3]
    record = json.loads((root / REGISTERED).read_text())
    assert list(version_files.problems(root, record["files"])) == []
