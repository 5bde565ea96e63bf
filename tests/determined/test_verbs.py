"""Who types ``hpcdet experiment list`` is told what does it here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import click
import pytest

from hpcdet.cli import main
from hpcdet.cli.frame import det_verbs
from tests import RECORDED
from tests.commands import Cli

VERBS = RECORDED / "determined" / "verbs.txt"
"""Every verb of ``det`` 0.38, as its ``--help`` lists it: ``e|xperiment / list ls``."""


def verbs() -> Iterator[list[str]]:
    """Each recorded verb, in all its spellings."""
    for line in VERBS.read_text().splitlines():
        parts = [part.split() for part in line.split(" / ")]
        yield from (list(words) for words in itertools.product(*map(spellings, parts)))


def spellings(names: list[str]) -> list[str]:
    return [name for each in names for name in {each.partition("|")[0], each.replace("|", "")}]


def test_every_verb_of_determined_is_answered() -> None:
    found = list(verbs())
    assert len(found) > 182
    unanswered = [words for words in found if not det_verbs.instead_of(words)]
    assert not unanswered
    assert not det_verbs.instead_of(["wandb", "login"]) and not det_verbs.instead_of([])


def test_what_is_named_is_a_command_line() -> None:
    for _, instead in det_verbs.rows():
        for words in re.findall(r"hpcdet ([^,;:()]+)", instead):
            command: click.Command = main.cli
            rest = words.split()
            while isinstance(command, click.Group) and not rest[0].startswith("-"):
                found = command.get_command(click.Context(command), rest.pop(0))
                assert found is not None, instead
                command = found
                if not rest:
                    break
            given = ["1" if word == "N" else word for word in rest]
            if "--version" not in given:
                command.make_context("it", given, resilient_parsing=not rest)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["experiment", "list"], "hpcdet ls"),
        (["e", "ls"], "hpcdet ls"),
        (["e", "create", "const.yaml", ".", "-f"], "hpcdet submit CONFIG MODEL_DIR"),
        (["trial", "logs", "-f", "7"], "hpcdet logs ID/3"),
        (["e", "label", "add", "7", "x"], "hpcdet tag ID --add"),
        (["det", "e", "list"], "'e list' is a verb of Determined's. Here: hpcdet ls"),
        (["e", "set", "priority", "3", "9"], "'e set priority' is a verb"),
        (["experiment"], "\n      create              hpcdet submit CONFIG MODEL_DIR\n"),
        (["trial", "explode"], "'trial explode' is no verb of Determined's."),
        (["notebook", "kill", "7"], "No such verb: 'kill'. Here: hpcdet notebook stop ID"),
        (["run", "lst"], "No such verb: 'lst'. Here: there are: start, ls, logs, stop"),
        (["cmd", "run", "ls"], "hpcdet run start -- COMMAND"),
        (["preview-search", "c.yaml"], "'preview-search' is a verb of Determined's. Here: hpcdet"),
    ],
)
def test_a_verb_of_determined_is_refused_with_ours(cli: Cli, words: list[str], said: str) -> None:
    failed = cli(*words, code=2)
    assert said in failed.err and not failed.out


def test_the_verbs_of_a_noun_fit_a_terminal(cli: Cli) -> None:
    alone = (noun for noun in det_verbs.NOUNS if noun not in main.VERBS)
    nouns = [noun for noun in alone if "*" not in det_verbs.NOUNS[noun][1]]
    assert len(nouns) > 4
    for noun in nouns:
        said = cli(noun, "list" if noun == "checkpoint" else "explode", code=2).err.splitlines()
        assert len(said) > 3 and all(len(line) <= 80 for line in said), said
