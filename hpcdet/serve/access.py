"""Access control: an ASGI layer that admits reading requests with the token, to this host.

A forwarded port is open to every user of the machine where ssh runs, and to every page in a
browser there: so each request shows the token, and its ``Host`` is one that only a tunnel has.
"""

from __future__ import annotations

import hmac
import time
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpcdet.serve.answers import refusal

HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names by which browsers reach a tunnel or a loopback port."""
AT_ONCE = 32
"""Requests with the token that are answered at a time; connections of others do not count."""
READING = frozenset({"GET", "HEAD"})
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
NOTHING = "default-src 'none'; frame-ancestors 'none'"
"""The policy for answers that are no page."""


class Access:
    """Hands requests on that may be answered.

    Args:
        token: that requests have to show: in ``Authorization: Bearer TOKEN`` (or ``token TOKEN``),
            in a cookie, or as ``?token=TOKEN``, for which a browser gets the cookie and an address
            without it.
        name: of the cookie; it differs between servers that one browser uses at a time.

    Attributes:
        asked_at: when the last request that showed the token came, monotonic seconds.
    """

    def __init__(self, app: ASGIApp, token: str, name: str) -> None:
        self.app, self.asked_at = app, time.monotonic()
        self._token, self._name, self._running = token.encode(), name, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # a websocket is closed unanswered: there is none
        answer = self._refused(scope)
        if answer is not None:
            await answer(scope, receive, _with_headers(send))
            return
        self.asked_at = time.monotonic()
        self._running += 1
        try:
            await self.app(scope, receive, _with_headers(send))
        finally:
            self._running -= 1

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if _host(headers.getlist("host")) not in HOSTS:
            return refusal(421, "MISDIRECTED", "the request is for another host")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for key, value in query if key == "token"]
        if given and self._is(given[-1]) and scope["method"] in READING:
            return self._let_in(scope, [pair for pair in query if pair[0] != "token"])
        kind, _, shown = headers.get("authorization", "").partition(" ")
        cookies = (cookie_parser(one).get(self._name, "") for one in headers.getlist("cookie"))
        by_header = kind.lower() in ("bearer", "token") and self._is(shown.strip())
        if not (by_header or any(self._is(one) for one in cookies)):
            found = refusal(403, "FORBIDDEN", "the token is missing", hint="open the printed URL")
            found.headers["connection"] = "close"
            return found
        if scope["method"] not in READING:
            found = refusal(405, "READ_ONLY", "this server only reads", hint="use the command line")
            found.headers["allow"] = "GET, HEAD"
            return found
        if self._running >= AT_ONCE:
            return refusal(503, "BUSY", f"{AT_ONCE} requests are being answered", hint="ask again")
        return None

    def _is(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)

    def _let_in(self, scope: Scope, rest: list[tuple[str, str]]) -> Response:
        path = "/" + scope["path"].lstrip("/")  # what begins with two is another host's address
        answer = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
        answer.set_cookie(
            self._name, self._token.decode(), httponly=True, samesite="strict", path="/"
        )
        self.asked_at = time.monotonic()
        return answer


def _host(given: list[str]) -> str:
    """Return the host without its port; "" if there is none, or more than one."""
    if len(given) != 1:
        return ""
    name, colon, port = given[0].rpartition(":")
    return (name if colon and port.isdigit() else given[0]).lower()


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in {**HEADERS, "content-security-policy": NOTHING}.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
