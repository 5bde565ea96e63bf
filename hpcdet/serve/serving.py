"""The application of the live view, and its life: from a bound socket until it is idle."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from hpcdet.serve import openapi
from hpcdet.serve.access import Access
from hpcdet.serve.answers import JSON, refusal
from hpcdet.serve.endpoints import Api
from hpcdet.serve.listening import Listening
from hpcdet.serve.pages import Pages
from hpcdet.serve.served_experiments import ServedExperiments

_LOOK_S = 1.0
_SILENT_S = 10.0
"""How long a connection may be open without a request, complete with its headers."""

_COLLECT = 100_000, 50, 50
"""Thresholds of ``gc``: what was read stays, and going through all of it takes 0.1 s each time."""


class _Connection(H11Protocol):
    """A connection that is closed where no request comes: a port is open to all users of a host."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_SILENT_S, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.close()


def new_token() -> str:
    """Return a token of 256 random bits."""
    return secrets.token_urlsafe(32)


def application(root: Path, registry: Path, token: str) -> Access:
    """Return the application that answers those who show the token."""
    sources = ServedExperiments(root)
    api = [*Api(sources, registry).routes(), Route("/openapi.json", _openapi)]
    pages = Pages(sources, registry).routes()
    app = Starlette(
        routes=[Mount("/api/v1", routes=api), *pages],
        exception_handlers={HTTPException: _missing, Exception: _broken},
    )
    app.router.redirect_slashes = False
    return Access(app, token, f"hpcdet-{secrets.token_hex(4)}")


def serve(app: Access, where: Listening, idle_s: float | None) -> None:
    """Answer requests until ``idle_s`` seconds pass without one, or SIGINT or SIGTERM come."""
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=2,
        )
    )

    async def life() -> None:
        async with _ending(server, app, idle_s):
            await server.serve(sockets=[where.socket])

    gc.set_threshold(*_COLLECT)
    asyncio.run(life())


@contextlib.asynccontextmanager
async def _ending(server: uvicorn.Server, app: Access, idle_s: float | None) -> AsyncIterator[None]:
    """End the server after some time without a request."""

    async def watch(limit: float) -> None:
        while time.monotonic() - app.asked_at < limit:
            await asyncio.sleep(min(_LOOK_S, limit))
        server.should_exit = True

    task = asyncio.create_task(watch(idle_s)) if idle_s is not None else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()


def _openapi(_: Request) -> Response:
    return Response(openapi.description(), media_type=JSON)


def _missing(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    hint = "GET /api/v1/openapi.json lists all addresses"
    return refusal(status, "NOT_FOUND", "no such address", where=request.url.path, hint=hint)


def _broken(request: Request, error: Exception) -> Response:
    what = f"the server failed ({type(error).__name__})"
    return refusal(500, "FAILED", what, where=request.url.path)
