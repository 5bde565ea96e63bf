"""Provenance chains: complete ones are, and whatever is changed in one is found."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdet.errors import ConfigError
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.provenance import chain_verdicts, chains
from hpcdet.policy.provenance.chain_verdicts import ChainVerdict
from hpcdet.policy.provenance.chains import Artifact, ChainLink, LinkTool, SourceChain
from hpcdet.policy.provenance.source_manifests import ListedFile, SourceManifest

KEY, OTHER = "11" * 32, "22" * 32
DAY = datetime.date(2027, 6, 1)


def digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def public(key: str) -> str:
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key))
    return private.public_key().public_bytes_raw().hex()


MANIFEST = SourceManifest("hosp-a", (ListedFile("x.csv", digest("x"), 1),))


def built(kinds: str = "acquire transform shard admit", key: str = KEY) -> SourceChain:
    """A chain whose last link is signed."""
    chain = SourceChain()
    for kind in kinds.split():
        made = Artifact(kind, digest(kind))
        if kind in ("shard", "admit", "revoke"):
            made = Artifact(MANIFEST.source, MANIFEST.root)
        chain = add(chain, kind, made)
    last = len(chain.links) - 1
    signed = {at: (chains.sign(chain.links[at], key),) for at in {last, min(3, last)}}
    return SourceChain(chain.links, signed)


def add(chain: SourceChain, kind: str, made: Artifact) -> SourceChain:
    tool = LinkTool("dedupe", "1.2")
    link = chains.extend(chain, kind, [made], tool=tool, actor="ada", time="2027-01-01T00:00:00Z")  # type: ignore[arg-type]
    return SourceChain((*chain.links, link), chain.signatures)


def text(chain: SourceChain) -> bytes:
    lines = []
    for place, link in enumerate(chain.links):
        lines += [link.to_bytes(), *(one.to_bytes() for one in chain.signatures.get(place, ()))]
    return b"".join(line + b"\n" for line in lines)


def judged(chain: SourceChain, **more: object) -> ChainVerdict:
    rest = {"trust": [public(KEY)], "manifest": MANIFEST, "today": DAY} | more
    return chain_verdicts.verify(chain, **rest)  # type: ignore[arg-type]


def reasons(chain: SourceChain, **more: object) -> str:
    found = judged(chain, **more)
    return "; ".join(f"{one.code} {one.what}" for one in found.problems)


def found_broken(data: bytes, path: Path, **more: object) -> bool:
    """True if reading or verifying the file finds fault with it."""
    path.write_bytes(data)
    try:
        return not judged(SourceChain.load(path), **more).active
    except GovernanceBroken as error:
        return error.check == "G111"


def test_a_whole_chain_is_complete_and_active(tmp_path: Path) -> None:
    path = tmp_path / "a.chain"
    path.write_bytes(text(built()))
    chain = SourceChain.load(path)
    assert chain == built()
    verdict = judged(chain, head=chain.head, expires="2027-06-01", admitted=5)
    assert (verdict.complete, verdict.active, verdict.problems) == (True, True, ())
    assert (verdict.links_verified, verdict.links_required) == (4, 4)
    assert judged(built("acquire shard admit")).active


def test_links_are_signed_as_dsse_signs_them() -> None:
    link = built().links[3]
    payload = link.to_bytes()
    kind = b"application/vnd.hpcdet.chain-link+json"
    message = b"DSSEv1 38 " + kind + b" " + str(len(payload)).encode() + b" " + payload
    signed = chains.sign(link, KEY)
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(KEY))
    assert signed.signature == private.sign(message).hex()
    assert link.prev == f"sha256:{hashlib.sha256(built().links[2].to_bytes()).hexdigest()}"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_tampered_byte_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "tampered.chain"
    whole = bytearray(text(built()))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    assert found_broken(bytes(whole), path)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_links_that_are_dropped_repeated_or_reordered_are_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "reordered.chain"
    lines = text(built("acquire transform transform shard admit")).splitlines(keepends=True)
    drawn = st.lists(st.integers(0, len(lines) - 1), min_size=0, max_size=len(lines) + 1)
    order = data.draw(drawn.filter(lambda found: found != list(range(len(lines)))))
    # signatures alone may stand twice, or where nothing needs one: they add and take nothing
    links = [one for one in order if b'"signature"' not in lines[one]]
    whole = [at for at, line in enumerate(lines) if b'"signature"' not in line]
    found = found_broken(b"".join(lines[one] for one in order), path)
    assert found or links == whole


def test_a_link_of_another_chain_is_found() -> None:
    chain, other = built(), built("acquire transform transform shard admit")
    swapped = (*chain.links[:2], other.links[3], chain.links[3])
    assert "does not follow" in reasons(SourceChain(swapped, chain.signatures))


def test_each_lack_has_its_reason() -> None:
    assert reasons(SourceChain()).startswith("P06")
    assert "G111 it has no link of kind shard, admit" in reasons(built("acquire transform"))
    unsigned = SourceChain(built().links)
    assert reasons(unsigned) == "G111 link 3 (admit) is not signed by a trusted key"
    assert "not signed" in reasons(built(key=OTHER))
    assert "does not end with what the policy names" in reasons(built(), head=digest("?"))
    changed = dataclasses.replace(MANIFEST, files=(ListedFile("x.csv", digest("y"), 1),))
    assert "not the data of hosp-a" in reasons(built(), manifest=changed)
    other = dataclasses.replace(MANIFEST, source="hosp-b")
    assert "not the data of hosp-b" in reasons(built(), manifest=other)
    assert "no manifest" in reasons(built(), manifest=None)
    assert not judged(unsigned).complete


def test_materials_are_what_earlier_links_have_made() -> None:
    chain = built("acquire")
    stranger = [Artifact("stranger", digest("stranger"))]
    link = chains.extend(chain, "transform", stranger, materials=stranger)
    assert "'stranger', which no earlier link has made" in reasons(
        SourceChain((*chain.links, link))
    )
    nothing = chains.extend(chain, "transform", stranger, materials=[])
    assert "uses nothing" in reasons(SourceChain((*chain.links, nothing)))


def test_an_admission_is_of_what_was_made_into_shards() -> None:
    chain = add(built("acquire"), "shard", Artifact("else", digest("else")))
    chain = add(chain, "admit", Artifact(MANIFEST.source, MANIFEST.root))
    signed = SourceChain(chain.links, {2: (chains.sign(chain.links[2], KEY),)})
    assert reasons(signed) == "G111 what was admitted is not what was made into shards"


def test_agreements_end() -> None:
    assert judged(built(), expires="2027-06-01").active
    late = judged(built(), expires="2027-05-31")
    assert (late.complete, late.active) == (True, False)
    assert "G112 the agreement on the source has expired on 2027-05-31" in reasons(
        built(), expires="2027-05-31"
    )
    assert "G112 no example" in reasons(built(), admitted=0)


def test_an_owner_withdraws_a_source() -> None:
    revoked = built("acquire transform shard admit revoke")
    admitted = revoked.links[3].digest
    assert reasons(revoked, head=admitted) == "G112 the source was revoked by ada"
    forged = SourceChain(revoked.links, {3: revoked.signatures[3]})
    assert "link 4 (revoke) is not signed" in reasons(forged)


def test_links_come_in_order_only() -> None:
    one = [Artifact("x", digest("x"))]
    for kinds, kind in (("", "admit"), ("acquire", "admit"), ("acquire shard admit", "transform")):
        with pytest.raises(ConfigError, match=f"{kind} cannot come"):
            chains.extend(built(kinds) if kinds else SourceChain(), kind, one)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="makes nothing"):
        chains.extend(SourceChain(), "acquire", [])
    with pytest.raises(ConfigError, match="private key"):
        chains.sign(built().links[0], "no key")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"NaN",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"seq":0,"seq":0}',
        b'{"key":"00","signature":"00"}',
    ],
)
def test_hostile_lines_are_refused_with_their_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "hostile.chain"
    path.write_bytes(text(built()) + line + b"\n")
    with pytest.raises(GovernanceBroken, match="line 6: "):
        SourceChain.load(path)


def test_a_chain_without_links_is_none(tmp_path: Path) -> None:
    path = tmp_path / "empty.chain"
    path.touch()
    assert reasons(SourceChain.load(path)).startswith("P06")


def test_links_have_digests_and_times(tmp_path: Path) -> None:
    path = tmp_path / "a.chain"
    for wrong in ({"time": "yesterday"}, {"params_sha256": "abc"}, {"kind": "bless"}):
        link: ChainLink = dataclasses.replace(built().links[0], **wrong)  # type: ignore[arg-type]
        path.write_bytes(link.to_bytes() + b"\n")
        with pytest.raises(GovernanceBroken, match="line 1: "):
            SourceChain.load(path)
