"""Statements of nodes: what is believed, what is refused and how that is said."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hpcdet import shipped
from hpcdet.policy import dsse, statements
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.statements import NodeDemand, NodeStatement, StatementSource

NOW = 1_800_000_000.0
BOOT = "0b6c1f5e-1111-2222-3333-444455556666"
MAKER = shipped.folder("governance") / "site" / "node_statement.py"


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
GOOD = NodeStatement("n1", BOOT, ("enclave_phi", "no_egress"), iso(NOW - 60), iso(NOW + 3600))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "n1.dsse"


def put(path: Path, said: NodeStatement | bytes = GOOD, key: Ed25519PrivateKey = KEY) -> None:
    data = said if isinstance(said, bytes) else statements.payload(said)
    path.write_text(json.dumps(dsse.sign(statements.PAYLOAD_TYPE, data, key)))
    path.chmod(0o644)


def demand(path: Path, *, key: str | None = public(KEY), **values: Any) -> NodeDemand:
    source = StatementSource(str(path.parent / "{node}.dsse"), key, 86400)
    keys = (key,) if key else ()
    level: Literal["signed", "declared"] = "signed" if key else "declared"
    return dataclasses.replace(NodeDemand(("enclave_phi",), level, source, keys), **values)


def verify(wanted: NodeDemand, node: str = "n1", now: float = NOW, boot: str = BOOT) -> Any:
    return statements.verify(wanted, node, now=now, boot_id=boot)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(GovernanceBroken) as caught:
        act()
    assert caught.value.check == "G121" and caught.value.exit_code == 9
    assert caught.value.where and caught.value.hint
    return caught.value.what


def test_a_good_statement_is_believed_and_its_digest_kept(file: Path) -> None:
    put(file)
    found = verify(demand(file))
    assert (found.node, found.level, found.not_after) == ("n1", "signed", GOOD.not_after)
    assert found.digest.startswith("sha256:") and len(found.digest) == 71


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"node": "n2"}, "is of node n2, and this is n1"),
        ({"boot_id": "another"}, "is of another boot of n1 (another; now"),
        ({"capabilities": ("no_egress",)}, "does not attest enclave_phi"),
        ({"capabilities": ()}, "does not attest enclave_phi"),
        ({"not_after": iso(NOW - 1)}, "the statement ended at"),
        ({"issued": iso(NOW - 90_000)}, "is 90000 s old; the site allows 86400 s"),
        ({"issued": iso(NOW + 2 * 86400)}, "172800 s ahead of this clock"),
        ({"issued": "yesterday"}, "'yesterday', which is no time"),
        ({"not_after": "2027-01-01"}, "which is no time"),
    ],
)
def test_what_does_not_hold_here_and_now_is_refused(
    file: Path, change: dict[str, Any], says: str
) -> None:
    put(file, dataclasses.replace(GOOD, **change))
    assert says in refused(lambda: verify(demand(file)))


def test_signatures_count_and_whose(file: Path) -> None:
    put(file, key=OTHER)
    assert "no trusted key" in refused(lambda: verify(demand(file)))
    assert verify(demand(file, keys=(public(KEY), public(OTHER)))).level == "signed"
    put(file)
    envelope = json.loads(file.read_text())
    signed = dsse.sign("text/plain", statements.payload(GOOD), KEY)
    for damaged in (
        {**envelope, "payload": dsse.sign("x", b"{}", KEY)["payload"]},
        {**envelope, "signatures": []},
        {**envelope, "payloadType": "text/plain"},
        {**envelope, "signatures": signed["signatures"]},
        signed,
    ):
        file.write_text(json.dumps(damaged))
        refused(lambda: verify(demand(file)))
    assert "no statements" in refused(lambda: verify(demand(file, source=None)))


def test_what_is_signed_is_written_in_one_way_only(file: Path) -> None:
    good = statements.payload(GOOD)
    twice = good.replace(b'"node":"n1"', b'"node":"n2","node":"n1"')
    more = json.dumps({**json.loads(good), "more": 1}, separators=(",", ":"), sort_keys=True)
    for data, says in (
        (twice, "canonically"),
        (json.dumps(json.loads(good)).encode(), "canonically"),
        (more.encode(), "canonically"),
        (good.replace(b'"name":"n1"', b'"name":"n2"'), "canonically"),
        (good.replace(b"hpcdet:node", b"hpcdet:other"), "no statement of a node"),
        (good.replace(b'["enclave_phi","no_egress"]', b"1"), "damaged"),
        (b"[]", "no statement of a node"),
        (b"{", "damaged"),
        (b"\xff", "damaged"),
        (b"[" * 5000, "damaged"),
        (good.replace(f'"{GOOD.issued}"'.encode(), b"NaN"), ""),
        (b'{"predicateType":"urn:hpcdet:node-statement:1","predicate":{}}', "damaged"),
    ):
        put(file, data)
        assert says in refused(lambda: verify(demand(file)))


def test_hostile_files_are_refused(file: Path, tmp_path: Path) -> None:
    assert "No such file" in refused(lambda: verify(demand(file)))
    for text in ("", "null", "[]", "{", '{"payload": 1}', '{"payload": "é"}', "NaN"):
        file.write_text(text)
        refused(lambda: verify(demand(file)))
    put(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    refused(lambda: verify(demand(file)))
    file.write_bytes(b"[" * 70_000)
    assert "more than 65536 bytes" in refused(lambda: verify(demand(file)))
    put(file)
    for mode in (0o664, 0o646):
        file.chmod(mode)
        assert "may change the statement" in refused(lambda: verify(demand(file)))
    put(tmp_path / "real")
    file.unlink()
    file.symlink_to(tmp_path / "real")
    refused(lambda: verify(demand(file)))
    file.unlink()
    os.mkfifo(file)
    assert "no plain file" in refused(lambda: verify(demand(file)))  # and it does not wait


def test_names_of_nodes_lead_nowhere_else(file: Path) -> None:
    put(file)
    for name in ("../n1", "", "n1/../n1", ".n1", "n1\n", "a" * 300):
        assert "no name of a node" in refused(lambda name=name: verify(demand(file), name))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_without_a_signer_the_file_must_be_roots(file: Path) -> None:
    put(file, key=OTHER)
    assert verify(demand(file, key=None)).level == "declared"
    os.chown(file, 65534, 65534)
    assert "belongs to user 65534, not to root" in refused(lambda: verify(demand(file, key=None)))
    put(file)  # a signature decides by itself
    assert verify(demand(file)).level == "signed"
    unsigned = demand(file, key=None, level="signed")
    assert "no trusted key" in refused(lambda: verify(unsigned))


def test_where_nodes_make_no_statements_a_declaring_policy_is_content(file: Path) -> None:
    assert verify(demand(file, key=None, source=None)).level == "declared"


# -- the maker -----------------------------------------------------------------------------


def make(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(MAKER), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def signer(tmp_path: Path) -> tuple[Path, str]:
    """A key of the maker's, and its public half."""
    path = tmp_path / "node.key"
    done = make("keygen", path)
    assert done.returncode == 0, done.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    assert make("public", path).stdout == done.stdout
    return path, done.stdout.strip()


def test_what_the_maker_makes_is_believed_on_this_boot(
    file: Path, signer: tuple[Path, str]
) -> None:
    key, hexes = signer
    words = ("make", "--key", key, "--node", "n1", "--out", file, "--capability", "enclave_phi")
    done = make(*words, "--check", "mounts=true", "--valid", 60)
    assert done.returncode == 0, done.stderr
    found = statements.verify(demand(file, key=hexes), "n1")
    assert found.level == "signed"
    said = statements.parse(dsse.verify(json.loads(file.read_text()), [hexes]))
    assert said.checks == {"mounts": "ok"} and file.stat().st_mode & 0o777 == 0o644
    late = time.time() + 61
    assert "ended" in refused(lambda: statements.verify(demand(file, key=hexes), "n1", now=late))


def test_the_maker_takes_back_what_a_failing_check_contradicts(
    file: Path, signer: tuple[Path, str]
) -> None:
    words = ("make", "--key", signer[0], "--node", "n1", "--out", file, "--capability", "a")
    assert make(*words).returncode == 0
    for check in ("firewall=false", "nothing", "=true"):
        file.touch()
        done = make(*words, "--check", check)
        assert done.returncode == 1 and not file.exists()
        assert check.partition("=")[0] in done.stderr
    assert list(file.parent.glob(".node-*")) == []


def test_the_maker_refuses_keys_that_others_read(file: Path, signer: tuple[Path, str]) -> None:
    signer[0].chmod(0o640)
    done = make("make", "--key", signer[0], "--out", file, "--capability", "a")
    assert done.returncode == 1 and "others may read the key (mode 0640)" in done.stderr
    assert make("keygen", signer[0]).returncode == 1  # and overwrites none


def test_the_maker_needs_nothing_of_hpcdet() -> None:
    assert importlib.util.find_spec("hpcdet") is not None
    text = MAKER.read_text()
    assert "import hpcdet" not in text and "from hpcdet" not in text
