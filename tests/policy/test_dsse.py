"""Envelopes: what is signed is what the specification says, and nothing else is believed."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.policy import dsse
from hpcdet.policy.codes import GovernanceBroken

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()


def public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def test_the_encoding_is_that_of_the_specification() -> None:
    signed = dsse.encoded("http://example.com/HelloWorld", b"hello world")
    assert signed == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert dsse.encoded("é", b"") == "DSSEv1 2 é 0 ".encode()


def test_one_of_the_keys_is_enough() -> None:
    envelope = dsse.sign("t", b"payload", KEY)
    assert dsse.verify(envelope, [public(OTHER), public(KEY)]) == b"payload"
    both = {**envelope, "signatures": dsse.sign("t", b"", OTHER)["signatures"]}
    both["signatures"] += envelope["signatures"]
    assert dsse.verify(both, [public(KEY)]) == b"payload"


@pytest.mark.parametrize(
    "change",
    [
        {"payload": base64.b64encode(b"other").decode()},
        {"payloadType": "u"},
        {"signatures": []},
        {"signatures": [{}]},
        {"signatures": [{"sig": "!"}]},
        {"signatures": [{"sig": ""}]},
        {"signatures": None},
        {"payload": None},
        {"payload": "é"},
    ],
)
def test_a_changed_envelope_is_not_believed(change: dict[str, Any]) -> None:
    envelope = {**dsse.sign("t", b"payload", KEY), **change}
    with pytest.raises(GovernanceBroken, match="G102"):
        dsse.verify(envelope, [public(KEY)])


def test_without_keys_nothing_is_believed() -> None:
    with pytest.raises(GovernanceBroken, match="none of the trusted keys"):
        dsse.verify(dsse.sign("t", b"", KEY), [])
    with pytest.raises(GovernanceBroken):
        dsse.verify({}, [public(KEY)])
