"""Answers in JSON: the envelopes and error objects of the command line, with ETags."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hpcdet.errors import HpcdetError, IntegrityError
from hpcdet.read.lookup.all_experiments import UNREADABLE
from hpcdet.read.views.items import encode
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import strict

_STATUS = {2: 400, 3: 404, 4: 400, 5: 503, 9: 500}
"""HTTP's codes for the exit codes of errors."""
JSON = "application/json"


def envelope(
    request: Request,
    verb: str,
    items: Sequence[Any],
    warnings: Sequence[str] = (),
    **more: str,
) -> Response:
    """Answer with items of a verb, as its ``-o json`` prints them; 304 where the client has them.

    Args:
        verb: the name in the schema, as in ``ckpt.ls``.
        more: further keys of the envelope.
    """
    known = {"items": [encode(item) for item in items], "warnings": list(warnings), **more}
    text = strict(known)
    body = {"schema": f"hpcdet.{verb}/1", "generated_at": files.now()}
    return unchanged(request, text) or Response(
        json.dumps(body, ensure_ascii=False)[:-1] + ", " + text[1:],
        media_type=JSON,
        headers={"etag": etag(text)},
    )


def etag(text: str) -> str:
    """Return the ETag of a text: weak, as envelopes also have the time of the answer."""
    return f'W/"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"'


def unchanged(request: Request, text: str) -> Response | None:
    """Return the answer 304 if the client has the text; None if not."""
    tag = etag(text)
    given = [one.strip() for one in request.headers.get("if-none-match", "").split(",")]
    return Response(status_code=304, headers={"etag": tag}) if tag in given else None


def refusal(status: int, code: str, message: str, *, where: str = "", hint: str = "") -> Response:
    """Answer with an error, in the form that the command line has under ``-o json``."""
    told = {"code": code, "message": message, "where": where, "hint": hint}
    return Response(
        json.dumps({"error": told}, ensure_ascii=False), status_code=status, media_type=JSON
    )


def status_of(error: HpcdetError) -> int:
    """Return HTTP's code for what a view has raised."""
    return _STATUS.get(error.exit_code, 500)


def failed(_: Request, error: HpcdetError) -> Response:
    """Answer with what a view has raised."""
    return refusal(status_of(error), error.code, error.what, where=error.where, hint=error.hint)


def answered(
    answer: Callable[[Request], Response],
    fails: Callable[[Request, HpcdetError], Response] = failed,
) -> Callable[[Request], Response]:
    """Return a function that answers with an error where ``answer`` raises one."""

    def ask(request: Request) -> Response:
        try:
            return answer(request)
        except HpcdetError as error:
            return fails(request, error)
        except UNREADABLE as error:
            what = f"its files cannot be read ({type(error).__name__})"
            return fails(request, IntegrityError(what, where=request.url.path))

    return ask
