"""Policies as people write them: what is wrong is said with its place and repair."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from hpcdet.config.policy.compile_policy import compile_policy
from hpcdet.config.policy.policy_file import read_policy
from hpcdet.config.policy.policy_keys import PolicyKeys
from hpcdet.config.policy.policy_text import inner_model
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy
from tests import TOP

TODAY = datetime.date(2027, 6, 1)
ROOT = "sha256:" + "0" * 64
POLICY = """\
apiVersion: hpcdet/governance-v1
name: notes
version: 3
layers:
  - {id: low, match: '^low', depth: [0, 0.5]}
  - {id: high, match: '^high', depth: 0.8}
  - {id: head, match: '^head', depth: 1}
sources:
  - id: public
    labels: {class: foundational, license: CC-BY-4.0}
    chain: {uri: public.jsonl, head: ROOT}
  - id: hosp-a
    labels: {class: restricted}
    chain: {uri: a.jsonl, head: ROOT}
    agreement: {id: DUA-118, expires: 2027-12-31, requires: [no_egress]}
  - id: hosp-b
    labels: {class: restricted, export: none}
    chain: {uri: b.jsonl, head: ROOT}
rules:
  - {id: r1, match: {label.class: foundational}, layers: ['*'], weight: 1}
  - {id: r2, match: {label.class: restricted}, layers: ['*', '!low'], weight: 0.5}
requires: {capabilities: [enclave]}
""".replace("ROOT", ROOT)


def compiled(*changes: tuple[str, str]) -> CompiledPolicy:
    text = POLICY
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return compile_policy(text, "p.yaml", TODAY)


def refused(*changes: tuple[str, str]) -> PolicyRefused:
    with pytest.raises(PolicyRefused) as caught:
        compiled(*changes)
    return caught.value


def test_rules_become_weights_of_sources_in_their_order_and_layers_in_that_of_the_text() -> None:
    policy = compiled()
    assert [one.id for one in policy.sources] == ["hosp-a", "hosp-b", "public"]
    assert [one.id for one in policy.layers] == ["low", "high", "head"]
    assert policy.matrix == ((0, 0.5, 0.5), (0, 0.5, 0.5), (1, 1, 1))
    assert policy.layers[0].depth == (0, 0.5) and policy.layers[2].depth == (1, 1)
    assert policy.on_nodes.capabilities == ("enclave", "no_egress")
    assert CompiledPolicy.from_json(policy.to_json()) == policy
    assert compiled().digest == policy.digest
    assert compiled(("version: 3", "version: 4")).digest != policy.digest


def test_the_first_rule_that_fits_decides_and_nothing_is_allowed_by_default() -> None:
    before = "rules:\n  - {id: r0, match: {source: hosp-b}, layers: [head], weight: 0.25}\n"
    policy = compiled(("rules:\n", before))
    assert policy.matrix == ((0, 0.5, 0.5), (0, 0.5, 0.25), (1, 1, 1))
    low = compiled(("requires: {", "default: 0.125\nrequires: {")).matrix
    assert low == ((0.125, 0.5, 0.5), (0.125, 0.5, 0.5), (1, 1, 1))
    frozen = compiled(("match: '^low'", "frozen: true, match: '^low'")).matrix
    assert [row[0] for row in frozen] == [0, 0, 0]


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ("{source: hosp-a}", {"hosp-a"}),
        ("{source: {'==': hosp-a}}", {"hosp-a"}),
        ("{source: {in: [hosp-a, public]}}", {"hosp-a", "public"}),
        ("{source: {glob: 'hosp-?'}}", {"hosp-a", "hosp-b"}),
        ("{label.export: none}", {"hosp-b"}),
        ("{label.license: {glob: 'CC-*'}}", {"public"}),
        ("{label.class: restricted, label.export: none}", {"hosp-b"}),
        ("{not: {label.export: none}}", {"hosp-a", "public"}),
        ("{any: [{source: public}, {label.export: none}]}", {"public", "hosp-b"}),
        ("{all: [{label.class: restricted}, {not: {source: hosp-b}}]}", {"hosp-a"}),
    ],
)
def test_a_predicate_fits_the_sources_that_it_says(match: str, fits: set[str]) -> None:
    rule = f"rules:\n  - {{id: r0, match: {match}, layers: [head], weight: 0.25}}\n"
    policy = compiled(("rules:\n", rule))
    found = zip(policy.sources, policy.matrix, strict=True)
    assert {source.id for source, row in found if row[2] == 0.25} == fits


RULE = "{id: r2, match: {label.class: restricted}"
LOW = "{id: low, match: '^low', depth: [0, 0.5]}"


@pytest.mark.parametrize(
    ("old", "new", "code", "line", "says"),
    [
        ("version: 3", "version: 3\nassurence: direct", "P01", 4, "did you mean 'assurance'?"),
        ("version: 3", "version: 3\naudit: {}", "P01", 4, "probe_every"),
        ("version: 3", "version: 3\nname: b", "P01", 4, "stands here twice"),
        ("name: notes", "name: &n notes", "P01", 2, "&n refers to another place"),
        ("[no_egress]}", "[no_egress], <<: {id: b}}", "P01", 15, "<< refers to another place"),
        ("weight: 1}", "weight: .nan}", "P01", 20, "finite number"),
        ("weight: 1}", "weight: 1.5}", "P01", 20, "less than or equal to 1"),
        ("weight: 1}", "weight: true}", "P01", 20, "expected a number, got True"),
        (RULE, "{id: r2", "P01", 21, "'match' is missing"),
        (RULE, "{id: r2, match: {label.class: 7}", "P01", 21, "label.class: expected text"),
        (RULE, "{id: r2, match: {class: restricted}", "P01", 21, "'class' is nothing to match"),
        (RULE, "{id: r2, match: {}", "P01", 21, "no match"),
        (RULE, "{id: r2, match: {label.class: restrictd}", "P09", 21, "no source fits it"),
        (RULE, "{id: r2, match: {source: public}", "P09", 21, "rules before it decide"),
        ("'!low'", "'!lo'", "P01", 21, "did you mean 'low'?"),
        ("['*', '!low']", "['!low']", "P01", 21, "names none"),
        ("layers: ['*'],", "layers: [high],", "P05", 5, "'low' learns from no source"),
        ("requires: {", "min_mass: {low: 0.5}\nrequires: {", "P05", 22, "0.333 of the planned"),
        ("requires: {", "min_mass: {lo: 0.5}\nrequires: {", "P01", 22, "did you mean 'low'?"),
        ("  - id: public\n", "  - id: public\n    share: 2\n", "P01", 13, "has no share"),
        ("    chain: {uri: a.jsonl, head: ROOT}\n", "", "P06", 12, "no provenance chain"),
        ("expires: 2027-12-31", "expires: 2027-05-31", "P01", 15, "ended on 2027-05-31"),
        ("expires: 2027-12-31", "expires: tomorrow", "P01", 15, "no date"),
        (
            "public.jsonl, head: ROOT",
            "public.jsonl, head: sha256:12",
            "P01",
            11,
            "64 hexadecimal digits",
        ),
        ("id: hosp-b", "id: hosp-a", "P01", 16, "is taken: sources.1"),
        ("id: hosp-b", "id: Hosp B", "P01", 16, "up to 64 of a-z0-9._-"),
        (LOW, "{id: low, match: '^(low'}", "P01", 5, "no regular expression"),
        (LOW, f"{{id: low, match: '{'(' * 300}a{')' * 300}'}}", "P01", 5, "recursion"),
        (LOW, "{id: low, match: '(a{1,15}b{1,15}c{1,15})*'}", "P01", 5, "may take for ever"),
        (LOW, "{id: low, match: '((a{1,15}b{1,15})*){0}(c{1,9}d*)*'}", "P01", 5, "for ever"),
        (LOW, "{id: low, match: '\\b.*.*.*.*'}", "P01", 5, "may take for ever"),
        (LOW, "{id: low, match: '^low', depth: [1, 0]}", "P01", 5, "lies behind"),
        ("version: 3", "version: 3\nunknown_source: allow", "P01", 4, "never allowed"),
        ("version: 3", "version: 3\nassurance: isolated", "P11", 4, "lane: true"),
        ("version: 3", "version: '3'", "P01", 3, "expected a whole number"),
        ("governance-v1", "governance-v2", "P01", 1, "hpcdet/governance-v1"),
        ("apiVersion: hpcdet/governance-v1\n", "", "P01", 0, "'apiVersion' is missing"),
        ("version: 3", "version: 3\nledger: {anchor: [slurm_comment]}", "P01", 4, "syslog, file"),
        ("version: 3", "version: 3\ntrust: [{id: a, role: site, key: 12}]", "P01", 4, "key"),
        (
            "version: 3",
            "version: 3\nmemorization: {twins: {withhold: [hosp-c]}}",
            "P01",
            4,
            "did you mean 'hosp-",
        ),
    ],
)
def test_what_is_wrong_is_said_with_code_line_and_repair(
    old: str, new: str, code: str, line: int, says: str
) -> None:
    error = refused((old.replace("ROOT", ROOT), new))
    assert error.policy_code == code, error
    assert error.where.startswith(f"p.yaml:{line}" if line else "p.yaml"), error
    assert says in str(error)
    assert error.exit_code == 4


def test_an_empty_list_of_sources_is_refused_and_so_is_an_empty_file() -> None:
    start = POLICY.index("sources:")
    empty = POLICY[:start] + "sources: []\n" + POLICY[POLICY.index("rules:") :]
    for text, says in ((empty, "p.yaml:8: sources: P01: the list is empty"), ("", "6 problems")):
        with pytest.raises(PolicyRefused, match=re.escape(says)) as caught:
            compile_policy(text, "p.yaml", TODAY)
        assert "Traceback" not in str(caught.value)


def test_all_problems_are_told_at_once_in_the_order_of_their_lines() -> None:
    error = refused(
        ("version: 3", "version: 0"), ("weight: 0.5", "weight: -1"), ("id: low", "id: ''")
    )
    assert error.what.startswith("P01: 3 problems")
    places = re.findall(r"p\.yaml:(\d+): (\S+): P01", str(error))
    assert places == [("3", "version"), ("5", "layers.0.id"), ("21", "rules.1.weight")]


def test_under_isolated_who_changes_a_lane_changes_nothing_that_others_use() -> None:
    lane = ("- {id: head, match: '^head', depth: 1}", "- {id: head, match: '^head', lane: true}")
    isolated = ("version: 3", "version: 3\nassurance: isolated")
    assert "'public' may change the lane 'head' and 'low'" in str(refused(lane, isolated))
    apart = (
        ("layers: ['*']", "layers: [low, high]"),
        ("layers: ['*', '!low']", "layers: [head]"),
    )
    assert compiled(lane, isolated, *apart).matrix == ((0, 0, 0.5), (0, 0, 0.5), (1, 1, 0))
    part = ("layers: ['*']", "layers: [high]"), ("layers: ['*', '!low']", "layers: [head]")
    assert "'public' may change 'high' and not 'low'" in str(refused(lane, isolated, *part))


def test_planned_shares_decide_what_reaches_a_layer() -> None:
    least = ("requires: {", "min_mass: {low: 0.5}\nrequires: {")
    shares = [(f"id: {name}\n", f"id: {name}\n    share: {n}\n") for name, n in
              (("public", 2), ("hosp-a", 1), ("hosp-b", 1))]  # fmt: skip
    assert compiled(least, *shares).layers[0].min_mass == 0.5
    assert refused(least, *shares[1:], ("id: public\n", "id: public\n    share: 1\n"))


def test_what_is_measured_and_required_reaches_the_compiled_policy() -> None:
    policy = compiled(
        (
            "requires: {capabilities: [enclave]}",
            "requires: {capabilities: [enclave], statement: signed}\n"
            "memorization: {twins: {pairs: 7, withhold: [hosp-a], alpha: 0.01}, max_advantage: 0.3,"
            " canaries: {repeats: [1, 4]}, on_violation: stop}\n"
            "entropy: {source_exposure: {sigmas: 4}, spectral: {seed: 8,"
            " expected: {low: [0.9, 0.1]}, band: {floor: 0.01}}}\n"
            "ledger: {segment_records: 5, anchor: [syslog, 'file:/w', {command: [log, a b]}]}\n"
            "probe_every: {batches: 9}\n"
            "changes: {tighten: {approvals: 1}, loosen: {approvals: 2}}\n"
            "mixed_examples: reject\nunknown_source: drop\nnormalize: global\n",
        )
    )
    memory = policy.memorization
    assert memory and memory.twins and memory.canaries
    assert (memory.twins.pairs, memory.twins.withhold) == (7, ("hosp-a",))
    assert (memory.canaries.repeats, memory.on_violation) == ((1, 4), "stop")
    assert policy.requires.statement == "signed"
    assert policy.ledger.anchor == ("syslog", "file:/w", "command:log 'a b'")
    assert (policy.entropy.sigmas, policy.entropy.seed, policy.entropy.floor) == (4, 8, 0.01)
    assert policy.entropy.reference == {"low": (0.9, 0.1)}
    assert (policy.changes.tighten_approvals, policy.changes.loosen_approvals) == (1, 2)
    assert (policy.mixed, policy.unknown_source, policy.normalize) == ("reject", "drop", "global")
    assert policy.probe_every == 9
    assert CompiledPolicy.from_json(policy.to_json()) == policy


CANARIES = [
    ("space_bits: 10", "P14", "20 canaries and their references", "at least 11"),
    ("per_source: 21, space_bits: 11", "P14", "21 canaries", "at least 12"),
    ("per_source: 2, repeats: [1, 4, 16]", "P01", "cannot have 3 numbers of repeats", "at least 3"),
    ("sources: [hosp-z]", "P01", "no source has the name 'hosp-z'", "hosp-b"),
    ("space_bits: 63", "P01", "space_bits", ""),
]


@pytest.mark.parametrize(("rules", "code", "says", "hint"), CANARIES)
def test_canaries_that_cannot_be_drawn_are_refused_before_any_queue(
    rules: str, code: str, says: str, hint: str
) -> None:
    last = "requires: {capabilities: [enclave]}"
    with pytest.raises(PolicyRefused, match=code) as bad:
        compiled((last, f"{last}\nmemorization: {{canaries: {{{rules}}}}}"))
    assert says in f"{bad.value.where} {bad.value.what}" and hint in bad.value.hint
    enough = "memorization: {canaries: {per_source: 21, space_bits: 12}}"
    assert compiled((last, f"{last}\n{enough}")).memorization


def test_a_policy_that_others_may_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(POLICY.replace("2027-12-31", "2999-12-31"))
    file.chmod(0o644)
    assert read_policy("p.yaml", tmp_path).compiled.name == "notes"
    file.chmod(0o666)
    with pytest.raises(PolicyRefused, match="everybody") as caught:
        read_policy(str(file))
    assert caught.value.hint == f"chmod go-w {file}"


def test_a_policy_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_bytes(b"#" * (2 << 20))
    (tmp_path / "raw.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("big.yaml", "raw.yaml", "loop.yaml", "folder.yaml", "none.yaml"):
        with pytest.raises(PolicyRefused, match=f"P01: .*{name}|{name}(:1)?: P01"):
            read_policy(name, tmp_path)
    with pytest.raises(PolicyRefused, match="hpcdet ships no policy named 'haed-only'"):
        read_policy("haed-only")


def test_a_rule_about_frozen_layers_alone_decides_nothing() -> None:
    frozen = ("match: '^low'", "frozen: true, match: '^low'")
    rule = (
        "rules:\n",
        "rules:\n  - {id: r0, match: {source: public}, layers: ['lo*'], weight: 1}\n",
    )
    assert refused(frozen, rule).policy_code == "P09"
    named = (rule[0], rule[1].replace("'lo*'", "low"))
    assert "layer 'low' is frozen: nothing may change it" in str(refused(frozen, named))


def test_a_huge_policy_is_refused_before_it_costs_much() -> None:
    few = "\n".join(f"  - {{id: l{n}, match: '^l{n}$'}}" for n in range(300))
    many = POLICY[: POLICY.index("  - {id: low")] + few + POLICY[POLICY.index("\nsources:") :]
    with pytest.raises(
        PolicyRefused, match=r"p\.yaml:4: layers: P01: list should have at most 256"
    ):
        compile_policy(many, "p.yaml", TODAY)
    deep = "{not: " * 50 + "{source: public}" + "}" * 50
    assert "nested more than 20" in str(refused((RULE, f"{{id: r2, match: {deep}")))
    with pytest.raises(PolicyRefused, match="more than 50000 values"):
        compile_policy(POLICY + f"description: [{'a, ' * 60000}]\n", "p.yaml", TODAY)


@given(st.text(alphabet="{}[]:&*<-'\n abr01.!", max_size=60), st.integers(0, len(POLICY)))
def test_no_text_gives_anything_but_a_policy_or_a_refusal(text: str, place: int) -> None:
    with contextlib.suppress(PolicyRefused):
        compile_policy(POLICY[:place] + text + POLICY[place:], "p.yaml", TODAY)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a file of another user")
def test_a_policy_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(POLICY)
    os.chown(file, 65534, 65534)
    with pytest.raises(PolicyRefused, match="belongs to"):
        read_policy(str(file))


def test_every_key_of_a_policy_is_documented_with_its_default() -> None:
    text = (TOP / "docs" / "reference" / "policy.md").read_text()
    for key, value in keys(PolicyKeys):
        assert f"| `{key}` | {value} |" in text, key


def keys(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        inner = inner_model(field.annotation)
        items = inner is not None and "list[" in str(field.annotation)
        if field.is_required():
            shown = "required"
        elif inner is not None and not items and field.default is not None:
            shown = "see below"
        else:
            value = field.get_default(call_default_factory=True)
            shown = f"`{value if isinstance(value, str) and value else json.dumps(value)}`"
        yield above + name, shown
        if inner is not None:
            yield from keys(inner, f"{above}{name}{'[]' if items else ''}.")


EXPECTED = "requires: {capabilities: [enclave]}\nentropy: {spectral: {expected: ref.json}}"
BANDS = [
    ('{"low": [0.9, 0.001]}', ""),
    ('{"lo": [0.9, 0.001]}', "no layer has the name 'lo'"),
    ('{"low": [0.9]}', r"entropy\.spectral"),
    ('{"low": 7}', r"entropy\.spectral"),
    ("[", "cannot read ref.json"),
    (None, "cannot read ref.json: No such file"),
]


@pytest.mark.parametrize(("held", "why"), BANDS)
def test_a_reference_may_be_in_a_file_beside_the_policy(
    held: str | None, why: str, tmp_path: Path
) -> None:
    text = POLICY.replace("requires: {capabilities: [enclave]}", EXPECTED)
    (tmp_path / "p.yaml").write_text(text)
    if held is not None:
        (tmp_path / "ref.json").write_text(held)
    if why:
        with pytest.raises(PolicyRefused, match=why) as refused:
            read_policy("p.yaml", tmp_path)
        assert refused.value.policy_code == "P01"
    else:
        assert read_policy("p.yaml", tmp_path).compiled.entropy.reference == {"low": (0.9, 0.001)}
