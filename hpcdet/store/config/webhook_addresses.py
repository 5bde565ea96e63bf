"""The addresses to which messages may be posted."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

_HERE = ("localhost", "127.0.0.1", "::1")


def refusal(url: str) -> str:
    """Return why nothing is posted to an address, without the address; "" if it may be."""
    parts = _parts(url)
    if parts is None:
        return "it is no address"
    if parts.username is not None or parts.password is not None:
        return "it has a user name or password"
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _HERE):
        return "it is not https (http is for this host alone)"
    return ""


def split(url: str) -> tuple[bool, str, int | None, str]:
    """Return of an address without ``refusal``: whether it is https, host, port, and the rest."""
    parts = _parts(url)
    assert parts is not None and parts.hostname is not None
    target = parts.path or "/"
    query = f"?{parts.query}" if parts.query else ""
    return parts.scheme == "https", parts.hostname, parts.port, f"{target}{query}"


def _parts(url: str) -> SplitResult | None:
    if not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        return parts if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None
