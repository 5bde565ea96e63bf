"""The decisions of all terms are one list, whatever fenced holders wrote behind its back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdet.errors import IntegrityError
from hpcdet.store.decisions import chain
from hpcdet.store.decisions.chain import Chain
from hpcdet.store.folder.layout import ExperimentPaths


def decided(paths: ExperimentPaths) -> list[object]:
    return [line["what"] for line in chain.read(paths) if line["kind"] == "decided"]


def test_what_a_fenced_holder_adds_after_its_term_was_never_decided(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    old = Chain.open(paths, 1, "old")
    old.append("decided", what=1)
    new = Chain.open(paths, 3, "new")  # the holder of term 2 died before it wrote anything
    old.append("decided", what="stale")
    new.append("decided", what=2)
    assert decided(paths) == [1, 2]
    assert [ln["what"] for ln in new.history if ln["kind"] == "decided"] == [1]
    late = Chain.open(paths, 2, "late")  # wakes after all
    late.append("decided", what="late")
    assert decided(paths) == [1, 2]
    Chain.open(paths, 4, "next").append("decided", what=3)
    assert decided(paths) == [1, 2, 3]
    assert [(ln["term"], ln["n"]) for ln in chain.read(paths) if ln["kind"] == "decided"] == [
        (1, 2),
        (3, 2),
        (4, 2),
    ]


def test_a_term_that_a_snapshot_was_made_in_and_that_is_missing_is_a_gap(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    old = Chain.open(paths, 1, "old")
    old.append("decided", what=1)
    Chain.open(paths, 2, "new").close()
    paths.decisions(1).unlink()
    with pytest.raises(IntegrityError, match="record 1 of 2 cannot be read"):
        Chain.open(paths, 3, "next", [old.point])


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["open", "write", "stale", "cut"]), st.integers(0, 3)),
        max_size=25,
    )
)
def test_the_chain_is_what_holders_saw_decided(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Any mixture of terms, stale writers, and crashes that tear the newest journal."""
    paths = ExperimentPaths(tmp_path_factory.mktemp("chain"))
    chains: list[Chain] = []
    model: list[int] = []
    for count, (step, which) in enumerate(steps):
        if step == "open" or not chains:
            chains.append(Chain.open(paths, len(chains) + 1, "test"))
            kept = [ln["what"] for ln in chains[-1].history if ln["kind"] == "decided"]
            assert kept == model
        elif step == "write":
            chains[-1].append("decided", what=count)
            model.append(count)
        elif step == "stale":
            chains[which % len(chains)].append("decided", what=count)
            if which % len(chains) == len(chains) - 1:
                model.append(count)
        elif step == "cut" and model and chain.read(paths)[-1]["kind"] == "decided":
            path = paths.decisions(len(chains))
            path.write_bytes(path.read_bytes()[: -1 - which])
            model.pop()
            chains.append(Chain.open(paths, len(chains) + 1, "after the crash"))
        assert decided(paths) == model
    for one in chains:
        one.close()


def test_a_gap_in_what_was_accepted_is_never_built_upon(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    first = Chain.open(paths, 1, "first")
    first.append("decided", what=1)
    whole = paths.decisions(1).read_bytes()
    Chain.open(paths, 2, "second").append("decided", what=2)
    paths.decisions(1).write_bytes(whole[:-5])  # not visible on this node yet
    with pytest.raises(IntegrityError, match="record 2 of 2"):
        Chain.open(paths, 3, "third")
    assert decided(paths) == [2]
    paths.decisions(1).write_bytes(whole)
    assert [ln["what"] for ln in Chain.open(paths, 4, "fourth").history if "what" in ln] == [1, 2]
