"""Likely secrets: what must not be copied into an experiment or shown in a record."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.store.config.data_secrets import HIDDEN, is_secret, key_of

NAMES = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.keystore", "id_rsa", "id_dsa",
    "id_ecdsa", "id_ed25519", ".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials",
    ".htpasswd", ".pgpass", "credentials", "credentials.json", "kubeconfig",
)  # fmt: skip
HARMLESS = (".env.example", ".env.sample", ".env.template")
CONTENTS = (
    (re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----"), "a private key"),
    (re.compile(rb"\bAKIA[0-9A-Z]{16}\b"), "an AWS access key"),
    (re.compile(rb"\bgh[pousr]_[A-Za-z0-9]{36}\b"), "a GitHub token"),
    (re.compile(rb"\bglpat-[A-Za-z0-9_-]{20}\b"), "a GitLab token"),
    (re.compile(rb"\bhf_[A-Za-z0-9]{34}\b"), "a Hugging Face token"),
    (re.compile(rb"\bxox[abpr]-[A-Za-z0-9-]{20,}"), "a Slack token"),
)
SCANNED_BYTES = 1024**2
"""Files above this are data, and not looked into."""
_FINDABLE = 8
"""Characters that a secret must have to be looked for: shorter ones are found by chance."""
_LAYOUT = b" \t\r\n\\\"'#"
"""What indentation, folding, quotes, escapes and comments put between the characters of a text."""
URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_ASSIGNMENT = re.compile(
    r"((?:--set=)?\s*(?:data|environment|notify|checkpoint_storage)\b[\w.-]*\s*=)(.*)", re.DOTALL
)
"""A word that sets values where secrets may stand: in one of these sections, or in all of it."""
_SECTIONS = {"secrets", "registry_auth", "webhook"}


def found(data: bytes) -> str:
    """Return the kind of secret that the data seems to hold; empty if none."""
    return next((what for pattern, what in CONTENTS if pattern.search(data)), "")


def refuse(path: Path, name: str) -> None:
    """Refuse a file that is likely a secret by its name or its contents.

    Raises:
        ConfigError: with how to leave it out.
    """
    base = path.name
    what = ""
    if any(fnmatch.fnmatchcase(base, pattern) for pattern in NAMES) and base not in HARMLESS:
        what = "its name says that it is a secret"
    else:
        try:
            if path.stat().st_size <= SCANNED_BYTES and (kind := found(path.read_bytes())):
                what = f"it holds {kind}"
        except OSError as error:
            raise ConfigError(f"cannot read the code: {error.strerror}", where=str(path)) from error
    if what:
        raise ConfigError(
            f"not copied into the experiment: {what}",
            where=str(path),
            hint=f"leave it out by the line /{name} in .hpcdetignore; "
            "jobs get secrets by data.secrets",
        )


def refuse_literal(contents: bytes, literal: Mapping[str, Any], where: str) -> None:
    """Refuse contents that hold one of the config's secrets, which belong into no file but one.

    However it is quoted, and wherever its lines are broken: it is looked for as it stands, and as
    JSON has it, with layout left out of both.

    Raises:
        ConfigError: with the name of the secret, not the secret.
    """
    plain = contents.translate(None, _LAYOUT) if literal else b""
    for name, value in literal.items():
        if any(form in plain for text in _texts(value) for form in _forms(text)):
            raise ConfigError(
                f"the config contains the secret {key_of(name)} in another place as well",
                where=where,
                hint="remove it there, or give the secret as {env: NAME} or {file: PATH}",
            )


def _forms(text: str) -> set[bytes]:
    """How a text may stand in a file, without layout; none that is found by chance."""
    written = (text, json.dumps(text), json.dumps(text, ensure_ascii=False))
    forms = {form.encode(errors="surrogatepass").translate(None, _LAYOUT) for form in written}
    return {form for form in forms if len(form) >= _FINDABLE}


def _texts(value: Any) -> Iterator[str]:
    """The texts in a secret that are long enough to be found by."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
    elif isinstance(value, str) and len(value) >= _FINDABLE:
        yield value


def without_login(url: str) -> str:
    """A URL without user and password."""
    return URL_LOGIN.sub("", url)


def shown(argv: Sequence[str], literal: Mapping[str, Any]) -> list[str]:
    """Return the words of a command for a record, ``HIDDEN`` in the place of each likely secret.

    A value is one by its key, by its contents, or as one of the literal ``data.secrets``.
    """
    return [_shown(word, literal) for word in argv]


def _shown(word: str, literal: Mapping[str, Any]) -> str:
    if assignment := _ASSIGNMENT.fullmatch(word):
        names = re.findall(r"[\w-]+", word)
        if not _SECTIONS.isdisjoint(names) or any(map(is_secret, names)):
            return assignment[1] + HIDDEN
    data = word.encode(errors="surrogateescape")
    plain = data.translate(None, _LAYOUT)
    texts = (text for value in literal.values() for text in _texts(value))
    if found(data) or any(form in plain for text in texts for form in _forms(text)):
        return HIDDEN
    return without_login(word)
