"""The words of a rank's command line."""

from __future__ import annotations

import gettext
from pathlib import Path

import pytest

from hpcdet import attempt
from hpcdet.process import command_line


def test_a_rank_looks_for_no_translations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser looks for a catalog of each heading when it is made: a nursery has made it."""
    asked: list[str] = []
    monkeypatch.setattr(gettext, "find", lambda domain, *_: asked.append(domain))
    given = command_line.OF_RANK.parse_args(["/EXP", "3", "2", "--identity", "abc"])
    assert (given.experiment, given.trial, given.attempt) == (Path("/EXP"), 3, 2)
    assert given.identity == "abc" and not given.test
    assert attempt.main(["/EXP", "--hpcdet", "of another version"]) == 1
    assert not asked
