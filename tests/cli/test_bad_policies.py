"""Bad input of policies: each is refused by name, with its place and a repair, by every verb.

A row changes one thing of an experiment that is right, as the first test shows.
"""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from hpcdet.config.policy import policy_text
from hpcdet.config.policy.anchor_places import refuse_unusable
from hpcdet.config.policy.policy_file import read_policy
from hpcdet.config.policy.policy_keys import PolicyKeys
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from tests import TOP
from tests.commands import Cli
from tests.policy import test_statements as statement
from tests.policy.test_ledger import POLICY as LEDGER_POLICY
from tests.ruled import Ruled

EXAMPLE = TOP / "examples" / "governed"
KEY = "ab" * 32
POLICY, CONFIG, MODEL = "policy.yaml", "governed.yaml", "model_def.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A governed experiment that nothing is wrong with."""
    found = tmp_path / "model"
    shutil.copytree(EXAMPLE, found, ignore=shutil.ignore_patterns("__pycache__"))
    for one in (found, *found.rglob("*")):
        one.chmod(0o700 if one.is_dir() else 0o600)
    return found


def test_what_is_right_is_accepted_by_every_verb(cli: Cli, folder: Path) -> None:
    cli("policy", "check", folder / POLICY)
    cli("plan", folder / CONFIG, "--site", "local")
    cli("submit", folder / CONFIG, "--site", "local", "--prepare", "--no-test")


def edited(old: str, new: str, name: str = POLICY) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text, old
        (folder / name).write_text(text.replace(old, new, 1))

    return edit


def writable(folder: Path) -> None:
    (folder / POLICY).chmod(0o666)


def in_latin1(folder: Path) -> None:
    (folder / POLICY).write_bytes(b"name: caf\xe9\n")


def a_folder(folder: Path) -> None:
    (folder / POLICY).unlink()
    (folder / POLICY).mkdir()


def yesterday() -> str:
    return (datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(1)).isoformat()


RESTRICTED = "    labels: {license: DUA-9, class: restricted}\n"
AGREED = RESTRICTED + "    agreement: {id: DUA-9, expires: EXPIRES}\n"
HEAD = "- {id: head, match: '^head\\.', depth: 1.0}"

ROWS: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "unknown key": (
        edited("assurance:", "assurence:"),
        "P01: unknown key 'assurence'",
        f"{POLICY}:6",
        "did you mean 'assurance'?",
    ),
    "duplicate key": (
        edited("version: 1\n", "version: 1\nversion: 2\n"),
        "stands here twice",
        f"{POLICY}:6",
        "keep one of them; the first is in line 5",
    ),
    "anchor": (
        edited("name: digits", "name: &n digits"),
        "&n refers to another place",
        f"{POLICY}:4",
        "write out what it stands for",
    ),
    "weight that is no number": (
        edited("layers: [head], weight: 1.0", "layers: [head], weight: .nan"),
        "expected a finite number",
        "rules.2.weight",
        "write one such as 0.5",
    ),
    "weight beyond all": (
        edited("layers: [head], weight: 1.0", "layers: [head], weight: 1.5"),
        "less than or equal to 1, got 1.5",
        "rules.2.weight",
        "take at most 1",
    ),
    "weight that is a truth": (
        edited("layers: [head], weight: 1.0", "layers: [head], weight: true"),
        "expected a number, got True",
        "rules.2.weight",
        "write it without quotes: 0.5",
    ),
    "no day": (
        edited(RESTRICTED, AGREED.replace("EXPIRES", "2027-02-30")),
        "'2027-02-30' is no date",
        "sources.2.agreement.expires",
        "write it as 2027-12-31",
    ),
    "no expression": (
        edited("'^head\\.'", "'^(head'"),
        "it is no regular expression",
        "layers.2.match",
        "one for names that begin with body.",
    ),
    "expression that takes for ever": (
        edited("'^head\\.'", "'^(([a-z0-9_]+)*.?)+!|^head\\.'"),
        "P01: it has repeats that fit a text in so many ways",
        "layers.2.match",
        "none within another",
    ),
    "no name": (edited("name: digits\n", ""), "'name' is missing", POLICY, "name: what people"),
    "no UTF-8": (
        in_latin1,
        "can't decode byte 0xe9",
        f"{POLICY}:1",
        "write it as UTF-8",
    ),
    "a folder": (a_folder, "it is a folder instead of a file", POLICY, "hpcdet policy ls"),
    "rule without a match": (
        edited("match: {label.class: restricted}, ", ""),
        "'match' is missing",
        "rules.2",
        "of a rule: {source: NAME}",
    ),
    "rule that matches nothing": (
        edited("match: {label.class: restricted}", "match: {label.class: secret}"),
        "P09: rule 'restricted-head-only' decides nothing",
        "rules.2.match",
        "correct its match, or take it out",
    ),
    "starved layer": (
        edited("layers: ['*'], weight", "layers: [body, head], weight"),
        "P05: layer 'low' learns from no source",
        "layers.0",
        "frozen: true",
    ),
    "expired agreement": (
        edited(RESTRICTED, AGREED.replace("EXPIRES", yesterday())),
        "agreement DUA-9 on source 'restricted' ended on",
        "sources.2.agreement.expires",
        "agree anew with its owner",
    ),
    "chain that is not there": (
        edited("uri: restricted.chain", "uri: gone.jsonl"),
        "P06: gone.jsonl of source 'restricted' is not in the model's folder",
        "gone.jsonl",
        "absolute path",
    ),
    "no source at all": (
        edited("- id: public\n    labels:", "- labels:"),
        "'id' is missing",
        "sources.0",
        "id: NAME",
    ),
    "what nothing enforces": (
        edited("coverage:", "memorization: {max_advantage: 0.1}\ncoverage:"),
        "does not enforce: memorization without twins and canaries",
        "governance.policy",
        "leave it out",
    ),
    "unknown anchor": (
        edited("coverage:", "ledger: {anchor: [slurm_comment]}\ncoverage:"),
        "an anchor is syslog, file:DIR, or {command: [PROGRAM, ...]}",
        "ledger.anchor",
        "ledger: {anchor: [syslog]}",
    ),
    "anchor without a command": (
        edited("coverage:", "ledger: {anchor: [{command: []}]}\ncoverage:"),
        "{command: [PROGRAM, ...]}",
        "ledger.anchor",
        "ledger: {anchor: [syslog]}",
    ),
    "anchor in a relative folder": (
        edited("coverage:", "ledger: {anchor: ['file:worm']}\ncoverage:"),
        "the folder of an anchor has an absolute path, and 'worm' has none",
        "ledger.anchor",
        "on storage that nodes share",
    ),
    "anchor with a relative program": (
        edited("coverage:", "ledger: {anchor: [{command: [./log, x]}]}\ncoverage:"),
        "'./log' is neither a name on PATH nor an absolute path",
        "ledger.anchor",
        "from / on",
    ),
    "others may write": (writable, "everybody", POLICY, "chmod go-w"),
}


@pytest.mark.parametrize("row", ROWS)
def test_bad_policies_are_refused_by_check_and_plan_alike(cli: Cli, folder: Path, row: str) -> None:
    break_it, what, where, repair = ROWS[row]
    break_it(folder)
    for verb in (("policy", "check", folder / POLICY), ("plan", folder / CONFIG, "--site=local")):
        err = flat(cli(*verb, code=4).err)
        for said in (what, where, repair):
            assert said and said in err, (verb, said, err)
        assert "Traceback" not in err
    cli("submit", folder / CONFIG, "--site", "local", "--prepare", "--no-test", code=4)
    assert list(cli.root.iterdir()) == [], "nothing was made"


def test_a_policy_that_is_named_as_a_text_is_told_its_form(cli: Cli, folder: Path) -> None:
    edited("governance:\n  policy: policy.yaml", "governance: policy.yaml", CONFIG)(folder)
    err = flat(cli("plan", folder / CONFIG, "--site", "local", code=4).err)
    assert "governance: expected a map, got 'policy.yaml'" in err
    assert "hint: governance: {policy: ...}" in err


def test_a_hint_is_there_for_each_required_key() -> None:
    def required(model: type[BaseModel]) -> Iterator[str]:
        for name, one in model.model_fields.items():
            if one.is_required():
                yield name
            if inner := policy_text.inner_model(one.annotation):
                yield from required(inner)

    assert set(required(PolicyKeys)) == policy_text._ABSENT.keys()


SWAPS = """
import os, sys
good, evil, at = sys.argv[1:]
while True:
    for one in (evil, good):
        os.link(one, at + ".new")
        os.rename(at + ".new", at)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of another user")
def test_the_policy_that_is_checked_is_the_one_that_is_read(folder: Path) -> None:
    """Whoever may rename in its folder exchanges it for one of his own between the two."""
    good, evil = folder / "good.yaml", folder / "evil.yaml"
    (folder / POLICY).rename(good)
    evil.write_text(good.read_text().replace("name: digits", "name: looser"))
    os.chown(evil, 54_321, 54_321)
    shutil.copy(good, folder / POLICY)
    argv = [sys.executable, "-c", SWAPS, str(good), str(evil), str(folder / POLICY)]
    accepted, refused = 0, 0
    with subprocess.Popen(argv) as swaps:
        try:
            while min(accepted, refused) < 40:
                assert swaps.poll() is None
                try:
                    assert read_policy(str(folder / POLICY)).compiled.name == "digits"
                    accepted += 1
                except PolicyRefused as error:
                    refused += "belongs to user 54321" in str(error)
        finally:
            swaps.kill()


@pytest.mark.parametrize(
    ("mode", "says", "repair"),
    [
        (None, "No such file or directory", "storage that nodes and this host share"),
        (0, "it is no folder", "name the folder"),
        (0o777, "everybody may remove what it holds", "chmod +t"),
        (0o1777, "", ""),
        (0o2770, "", ""),
    ],
)
def test_a_folder_that_cannot_be_an_anchor_is_refused_before_anything_is_made(
    mode: int | None, says: str, repair: str, cli: Cli, folder: Path, tmp_path: Path
) -> None:
    worm = tmp_path / "worm"
    if mode:
        worm.mkdir()
        worm.chmod(mode)
    elif mode == 0:
        worm.touch()
    edited("coverage:", f"ledger: {{anchor: ['file:{worm}']}}\ncoverage:")(folder)
    cli("policy", "check", folder / POLICY)  # of the text, which other hosts may have
    err = flat(cli("plan", folder / CONFIG, "--site", "local", code=4 if says else 0).err)
    if says:
        assert f"ledger.anchor: file:{worm}: P01: the anchor cannot be used: {says}" in err
        assert repair in err
        cli("submit", folder / CONFIG, "--site", "local", "--prepare", "--no-test", code=4)
        assert list(cli.root.iterdir()) == []
    else:
        assert f"you own {worm}: it shows damage, and not what you change yourself" in err


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_folder_of_somebody_else_is_no_anchor_for_who_may_not_write_in_it(
    tmp_path: Path,
) -> None:
    for one in (tmp_path, *tmp_path.parents):
        if one.stat().st_uid == os.getuid() and one != Path("/tmp"):
            one.chmod(one.stat().st_mode | 0o011)
    worm = tmp_path / "worm"
    worm.mkdir()
    worm.chmod(0o750)
    said = tmp_path / "said"
    said.touch()
    said.chmod(0o666)
    child = os.fork()
    if child == 0:
        os.setgid(54_321)
        os.setuid(54_321)
        try:
            refuse_unusable([f"file:{worm}"])
        except PolicyRefused as error:
            said.write_text(str(error))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert "you may not make files in it" in said.read_text()
    worm.chmod(0o1777)
    assert "you own" in refuse_unusable([f"file:{worm}"])[0]
    os.chown(worm, 0, 54_321)
    worm.chmod(0o2770)
    with pytest.raises(PolicyRefused, match="group 54321 may remove what it holds"):
        refuse_unusable([f"file:{worm}"])
    worm.chmod(0o3770)
    assert "you own" in refuse_unusable([f"file:{worm}"])[0]


def test_a_program_or_a_syslog_that_this_host_has_not_is_a_warning(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes may have them; there a failing anchor is told by the attempt."""
    monkeypatch.setattr("hpcdet.config.policy.anchor_places._SYSLOG", folder / "none")
    asked = (
        "ledger: {anchor: [syslog, {command: [rekor-none, upload]}, {command: [ls]}]}\ncoverage:"
    )
    edited("coverage:", asked)(folder)
    err = flat(cli("plan", folder / CONFIG, "--site", "local").err)
    assert "ledger.anchor: there is no program rekor-none on this host: nodes need it" in err
    assert "ledger.anchor: syslog: there is no" in err and " ls " not in err


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_run_key_that_is_not_there_is_refused(cli: Cli, folder: Path) -> None:
    """A key itself at submission; a reference to nothing where it is resolved, by its name."""
    given = "  policy: policy.yaml"
    edited(given, f"{given}\n  run_key: {KEY}", CONFIG)(folder)
    argv = ("submit", folder / CONFIG, "--site", "local", "--no-test", "--prepare")
    err = cli(*argv, code=4).err
    assert "governance.run_key" in err and "expected a reference, not the key itself" in flat(err)
    assert KEY not in err, "no message holds a key"


def test_tied_layers_obey_the_stricter_rule(cli: Cli, folder: Path) -> None:
    """Not refused: said. The tied parameter may be changed by what both layers may."""
    edited('network.add_module("head"', 'network.add_module("tied"', MODEL)(folder)
    tie = "        network.tied.bias = network.body.bias\n        self.model ="
    edited("        self.model =", tie, MODEL)(folder)
    edited("nn.Linear(16 * 16, hidden)", "nn.Linear(16 * 16, 10)", MODEL)(folder)
    edited("nn.Linear(hidden, 10)", "nn.Linear(10, 10)", MODEL)(folder)
    edited("'^head\\.'", "'^tied\\.'")(folder)
    argv = ("policy", "compile", folder / POLICY, "--model", folder / CONFIG, "-o", "json")
    [item] = cli(*argv).items
    layers = {one["name"]: one["layer"] for one in item["parameters"]}
    assert layers["body.bias"] == "body+head" and layers["tied.weight"] == "head"
    weights = dict(zip(item["sources"], item["matrix"], strict=True))
    assert weights["restricted"][item["layers"].index("body+head")] == 0


def test_a_clock_two_days_off_is_told_by_the_statement_of_the_node(tmp_path: Path) -> None:
    """That of the node, or of who signed: ahead or behind, nothing runs."""
    path = tmp_path / "n1.dsse"
    statement.put(path)
    statement.verify(statement.demand(path))
    for off, says in ((-2, "172740 s ahead of this clock"), (2, "the statement ended at")):
        now = statement.NOW + off * 86400
        with pytest.raises(GovernanceBroken, match=says) as caught:
            statement.verify(statement.demand(path), now=now)
        assert caught.value.check == "G121" and "n1" in caught.value.where
        assert "the statement" in caught.value.hint or "administrator" in caught.value.hint
        assert caught.value.exit_code == 9


def test_a_truncated_ledger_is_told(cli: Cli) -> None:
    ruled = Ruled(cli.root / "ruled-1", LEDGER_POLICY)
    folder = ruled.attempt(LEDGER_POLICY, {"a": 4})
    path = ruled.trial.paths.attempt(1).ledger
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3] + lines[4:]))
    err = flat(cli("ledger", "verify", "ruled-1", code=9).err)
    assert "G104" in err and "record 3" in err and str(path) in err and "backup" in err
    # without its end alone it looks like one of a crash: its attempt and its checkpoint know better
    path.write_bytes(b"".join(lines)[: len(lines[0]) + 20])
    [item] = cli("ledger", "verify", "ruled-1", "-o", "json", code=9).items
    assert not item["ok"] and item["first_bad"].startswith("1:1 G105: it has no end")
    ruled.trial.paths.attempt(1).verdict.unlink()
    err = flat(cli("ledger", "verify", "ruled-1", code=9).err)
    assert f"G105: checkpoint {folder.name}: attempt 1, record 4: " in err
    path.unlink()
    assert "has trained, and has no ledger" in flat(cli("ledger", "verify", "ruled-1", code=9).err)
