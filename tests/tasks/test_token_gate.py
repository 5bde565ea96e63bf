"""The token in front of a WSGI application: who is let in, and what a browser gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from hpcdet.tasks.servers.token_gate import StartResponse, TokenGate

TOKEN = "a-token_of-64"


def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [])
    return [environ["PATH_INFO"].encode()]


def asked(path: str = "/data", **environ: str) -> tuple[str, dict[str, str], bytes]:
    """Status, headers and body that the gate answers."""
    said: list[Any] = []
    path, _, query = path.partition("?")
    given = {"PATH_INFO": path, "QUERY_STRING": query, "HTTP_HOST": "localhost:6006", **environ}
    setup_testing_defaults(given)
    gate = TokenGate(application, TOKEN, "cookie-1")
    body = b"".join(gate(given, lambda *words: said.extend(words)))
    return said[0], dict(said[1]), body


@pytest.mark.parametrize("kind", ["token", "Token", "Bearer"])
def test_a_header_with_the_token_is_let_in(kind: str) -> None:
    assert asked(HTTP_AUTHORIZATION=f"{kind} {TOKEN}") == ("200 OK", {}, b"/data")


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HTTP_AUTHORIZATION": "token"},
        {"HTTP_AUTHORIZATION": f"Basic {TOKEN}"},
        {"HTTP_AUTHORIZATION": f"token {TOKEN[:-1]}"},
        {"HTTP_AUTHORIZATION": "token \xe9"},
        {"HTTP_COOKIE": f"cookie-2={TOKEN}"},
        {"HTTP_COOKIE": "cookie-1="},
        {"HTTP_COOKIE": '=;"bad'},
        {"QUERY_STRING": "token="},
        {"QUERY_STRING": "token=%FF"},
    ],
)
def test_all_others_are_refused(environ: dict[str, str]) -> None:
    status, _, body = asked(**environ)
    assert status == "403 Forbidden" and TOKEN.encode() not in body


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1:6006", ""])
def test_another_host_is_refused_even_with_the_token(host: str) -> None:
    # a page of that name would else reach the server by the user's own browser
    assert asked(HTTP_HOST=host, HTTP_AUTHORIZATION=f"token {TOKEN}")[0].startswith("421")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8888", "[::1]:6006"])
def test_names_of_this_machine_are_taken(host: str) -> None:
    assert asked(HTTP_HOST=host, HTTP_AUTHORIZATION=f"token {TOKEN}")[0] == "200 OK"


def test_a_browser_gets_a_cookie_for_the_token_in_its_address() -> None:
    status, headers, _ = asked(f"/a b/?x=1&token={TOKEN}")
    assert status == "303 See Other" and headers["Location"] == "/a%20b/?x=1"
    cookie, *flags = headers["Set-Cookie"].split("; ")
    assert flags == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert asked(HTTP_COOKIE=cookie) == ("200 OK", {}, b"/data")


@pytest.mark.parametrize("path", ["//evil.example", "/\r\nSet-Cookie: x=y"])
def test_the_way_back_leads_nowhere_else(path: str) -> None:
    place = asked(f"{path}?token={TOKEN}")[1]["Location"]
    assert place.startswith("/") and not place.startswith("//")
    assert "\r" not in place and "\n" not in place
