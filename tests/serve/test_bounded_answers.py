"""What a client asks for takes bounded time, and what it asks for at once is read once."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdet.errors import UsageError
from hpcdet.read.usage import usage_table
from hpcdet.read.views import measured
from hpcdet.read.views.logs import LogLine
from hpcdet.serve import endpoints, openapi, served_experiments
from hpcdet.serve.served_experiments import ServedExperiments
from hpcdet.store.fs import json_record
from tests.builders import Builder, sweep


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


def test_the_description_says_which_expressions_are_refused() -> None:
    paths = json.loads(openapi.description())["paths"]
    parameters = paths["/api/v1/experiments/{id}/logs"]["get"]["parameters"]
    said = next(one for one in parameters if one["name"] == "grep")["schema"]["description"]
    for pattern in (".*a.*b.*c", "(a+)+"):
        assert pattern in said
        with pytest.raises(UsageError, match="in so many ways"):
            endpoints._pattern(pattern)
    assert "loss.*nan" in said and endpoints._pattern("loss.*nan")


def test_a_search_ends_though_lines_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_LONGEST_SEARCH_S", 0.05)

    def lines() -> Iterator[LogLine]:
        while True:
            yield line("a" * 10_000)

    begun = time.process_time()
    with pytest.raises(UsageError, match=r"more than 0\.05 s"):
        [*endpoints._searched(lines(), endpoints._pattern("a.*b"))]
    assert time.process_time() - begun < 30


def test_requests_that_come_together_share_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sweep(tmp_path / "digits-7f3a").paths
    served = ServedExperiments(tmp_path)
    with served.gathered(paths) as first:
        pass
    with served.gathered(paths) as second:
        assert second is first
    monkeypatch.setattr(served_experiments, "_TOGETHER_S", 0.0)
    with served.gathered(paths) as third:
        assert third is not first


def test_lists_go_over_what_is_in_memory_and_evict_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_experiments, "_KEPT", 2)
    every = [sweep(tmp_path / f"digits-{number}").paths for number in range(4)]
    served = ServedExperiments(tmp_path)
    for paths in every[2:]:
        with served.gathered(paths):
            pass
    rows, warnings = served.usage(every, ("user",))
    assert (len(rows), warnings) == (4, [])
    assert [*served._kept] == every[2:]
    expected = [usage_table.of_experiment(paths, ("user",)) for paths in every]
    assert rows == expected


def test_a_few_points_of_each_trial_do_not_hold_all_of_them(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    for _ in range(40):
        attempt = built.trial(hidden=1).attempt()
        for step in range(1, 201):
            attempt.metrics("training", step, loss=1.0 / step)

    def peak(points: int) -> tuple[int, int]:
        tracemalloc.start()
        rows = measured.metrics(built.paths, points=points)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return len(rows), held

    (every, whole), (few, thinned) = peak(200), peak(2)
    assert (every, few) == (8000, 80)
    assert thinned < whole / 4


def test_numbers_that_are_not_finite_are_words() -> None:
    plain = {"a": [math.nan, -math.inf, 1.5, "é"]}
    assert json_record.strict(plain) == '{"a": ["NaN", "-Infinity", 1.5, "é"]}'
    assert json_record.strict({"a": 1}, indent=1) == '{\n "a": 1\n}'
