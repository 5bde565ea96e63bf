"""A WSGI application behind a token: TensorBoard's own has no notion of who asks.

A request shows the token in ``Authorization: token TOKEN``, or in a cookie, which a browser gets
for the query ``?token=TOKEN`` of its first request. An ssh tunnel ends at a port that other users
of the same laptop reach, and web pages of others, too: so the ``Host`` has to be this machine.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

_HERE = ("localhost", "127.0.0.1", "::1")

StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class TokenGate:
    """Hands requests that show the token on to an application; answers 403 to all others.

    Args:
        cookie: its name, which differs between applications that one browser uses at a time.

    Attributes:
        asked_at: when the last request came that showed the token, monotonic seconds.
    """

    def __init__(self, application: Application, token: str, cookie: str) -> None:
        self.application = application
        self.asked_at = time.monotonic()
        self._token = token
        self._cookie = cookie

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        host = urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname
        if host not in _HERE:
            return _refusal(start_response, "421 Misdirected Request", "the host is not this one")
        query = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        if self._is(dict(query).get("token", "")):
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            path = quote(environ.get("PATH_INFO", "/").lstrip("/").encode("latin-1"))
            return self._let_in(start_response, f"/{path}" + (f"?{rest}" if rest else ""))
        if not (self._is(_in_header(environ)) or self._is(self._in_cookie(environ))):
            return _refusal(
                start_response, "403 Forbidden", "Authorization: token TOKEN is missing"
            )
        self.asked_at = time.monotonic()
        return self.application(environ, start_response)

    def _is(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _in_cookie(self, environ: Mapping[str, Any]) -> str:
        try:
            found = SimpleCookie(environ.get("HTTP_COOKIE", "")).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def _let_in(self, start_response: StartResponse, place: str) -> Iterable[bytes]:
        """Redirect to the same place without the token, which must not stay in the address."""
        cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
        headers = [
            *(("Location", place), ("Set-Cookie", cookie)),
            *(("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-store")),
        ]
        start_response("303 See Other", [*headers, ("Content-Length", "0")])
        return []


def _in_header(environ: Mapping[str, Any]) -> str:
    kind, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
    return token.strip() if kind.lower() in ("token", "bearer") else ""


def _refusal(start_response: StartResponse, status: str, why: str) -> Iterable[bytes]:
    body = f"{why}\n".encode()
    kind = ("Content-Type", "text/plain; charset=utf-8")
    start_response(status, [kind, ("Content-Length", str(len(body)))])
    return [body]
