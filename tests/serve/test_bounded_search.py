"""What a client searches logs for takes bounded time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hpcdet.errors import UsageError
from hpcdet.read.views.logs import LogLine
from hpcdet.serve import endpoints


def line(text: str) -> LogLine:
    return LogLine(1, 1, 0, text)


def test_expressions_that_people_search_for_are_taken() -> None:
    said = [line("epoch 3: loss nan"), line("Traceback (most recent call last):"), line("")]
    for pattern, found in (("loss.*nan", 1), ("^Trace|epoch", 2), (r"\d+: loss", 1), ("", 3)):
        assert len([*endpoints._searched(said, endpoints._pattern(pattern))]) == found


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*)*x", ".*a.*b.*c", "(x+x+)+y"])
def test_an_expression_that_may_take_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="in so many ways"):
        endpoints._pattern(pattern)


def test_a_search_ends_though_lines_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_LONGEST_SEARCH_S", 0.05)

    def lines() -> Iterator[LogLine]:
        while True:
            yield line("a" * 10_000)

    begun = time.process_time()
    with pytest.raises(UsageError, match=r"more than 0\.05 s"):
        [*endpoints._searched(lines(), endpoints._pattern("a.*b"))]
    assert time.process_time() - begun < 30
