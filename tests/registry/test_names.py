"""Names of models and versions, and the order of semantic versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdet.errors import UsageError
from hpcdet.registry import model_names
from hpcdet.registry.model_names import ModelReference, reference
from hpcdet.registry.semantic_versions import SemanticVersion, VersionRange

# the example of semver.org 11, in order
ORDER = [
    *("1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2"),
    *("1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "2.0.0", "2.1.0", "2.1.1", "10.0.0"),
]
RANGES = {
    "^1.4": (["1.4.0", "1.4.7", "1.9.0"], ["1.3.9", "2.0.0", "2.0.0-rc.1", "1.5.0-rc.1"]),
    "^1": (["1.0.0", "1.9.9"], ["0.9.0", "2.0.0"]),
    "^0.3": (["0.3.0", "0.3.9"], ["0.2.9", "0.4.0", "1.0.0"]),
    "^0.0.3": (["0.0.3"], ["0.0.2", "0.0.4", "0.1.0"]),
    "^0": (["0.0.0", "0.9.0"], ["1.0.0"]),
    "~1.4": (["1.4.0", "1.4.9"], ["1.5.0", "1.3.0"]),
    "~1.4.2": (["1.4.2", "1.4.9"], ["1.4.1", "1.5.0"]),
    "1.4": (["1.4.0", "1.4.9"], ["1.5.0"]),
    "1.4.0": (["1.4.0", "1.4.0+build"], ["1.4.1", "1.4.0-rc.1"]),
    "^1.4.0-rc.1": (["1.4.0-rc.1", "1.4.0-rc.2", "1.4.0", "1.8.0"], ["1.4.0-beta", "1.5.0-rc.1"]),
}
NAMES = st.from_regex(r"[a-z][0-9a-z-]{0,3}", fullmatch=True)
PARTS = st.one_of(st.integers(0, 12).map(str), NAMES)
VERSIONS = st.builds(
    lambda numbers, pre: ".".join(map(str, numbers)) + (f"-{'.'.join(pre)}" if pre else ""),
    st.tuples(*[st.integers(0, 12)] * 3),
    st.lists(PARTS, max_size=3),
)


def test_versions_are_ordered_as_semver_says() -> None:
    parsed = [SemanticVersion.parse(text) for text in ORDER]
    assert len(set(parsed)) == len(parsed)
    parsed.reverse()
    assert [one.text for one in sorted(parsed)] == ORDER
    assert SemanticVersion.parse("1.0.0+a") == SemanticVersion.parse("1.0.0+b")


@given(VERSIONS, VERSIONS, VERSIONS)
def test_the_order_is_total(a: str, b: str, c: str) -> None:
    x, y, z = map(SemanticVersion.parse, (a, b, c))
    assert (x < y) + (x == y) + (y < x) == 1
    assert not (x < y < z) or x < z
    for text in (f"^{a}", f"~{a}", a):
        found = VersionRange.parse(text)
        assert found is not None and x in found  # a range has the version that it begins with


@pytest.mark.parametrize("text", RANGES)
def test_ranges(text: str) -> None:
    found = VersionRange.parse(text)
    assert found is not None
    inside, outside = RANGES[text]
    assert [one for one in inside if SemanticVersion.parse(one) not in found] == []
    assert [one for one in outside if SemanticVersion.parse(one) in found] == []


@pytest.mark.parametrize(
    "text", ["1", "1.4", "01.2.3", "1.2.3-", "1.2.3-01", "v1.2.3", "1.2.3 ", "", "1.2.3\n"]
)
def test_what_is_no_semantic_version(text: str) -> None:
    with pytest.raises(UsageError, match="not a semantic version"):
        SemanticVersion.parse(text)


def test_references() -> None:
    assert reference("model:digits:3") == reference("digits:3") == ModelReference("digits", 3)
    assert reference("digits@production") == ModelReference("digits", at="production")
    assert reference("digits@^1.4").range is not None and reference("a@v1").range is None
    for text in ("model:digits", "model:digits:3", "model:digits@production", "model:a.b-c@^1.4"):
        assert str(reference(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "Digits", "../x", "a/b", ".hidden", "-x", "digits:", "digits:0", "digits:x", "a:1:2"),
        *("digits@", "digits@Production", "digits@@x", "digits@../x", "a\n", "x" * 129, "a b", "é"),
    ],
)
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(UsageError):
        reference(text)


@pytest.mark.parametrize("text", ["latest", "1.4", "^1", "3", "", "A", "a/b"])
def test_what_is_no_alias(text: str) -> None:
    with pytest.raises(UsageError):
        model_names.alias(text)
