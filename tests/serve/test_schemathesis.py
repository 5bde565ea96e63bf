"""The API against its description: what schemathesis makes of it, and what it finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from hpcdet.serve import serving
from hpcdet.serve.endpoints import ADDRESSES
from tests.builders import sweep

TOKEN = {"Authorization": "Bearer token", "Host": "localhost"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root: Path = tmp_path_factory.mktemp("root")
    sweep(root / "digits-7f3a")
    sweep(root / "other-0001", ended=False)
    app = serving.application(root, root / "registry", "token")

    async def local(scope: Any, receive: Any, send: Any) -> None:
        """The application; requests without the token are for this host, too."""
        if scope["type"] == "http":
            others = [pair for pair in scope["headers"] if pair[0] != b"host"]
            scope = {**scope, "headers": [*others, (b"host", b"localhost")]}
        await app(scope, receive, send)

    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", local, headers=TOKEN)


@pytest.mark.parametrize("address", ADDRESSES, ids=lambda one: one.name)
def test_every_answer_is_one_of_the_description(api: Any, address: Any) -> None:
    operation = api[f"/api/v1{address.path}"]["GET"]
    answered: set[int] = set()

    @settings(
        max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        if "{id}" in address.path and len(answered) % 2 == 0:
            case.path_parameters["id"] = "digits-7f3a"
        answer = case.call(headers=TOKEN, base_url="http://localhost")
        case.validate_response(answer)
        answered.add(answer.status_code)

    check()
    # no two drawn names are those of experiments, nor one that of a model
    assert 200 in answered or address.name == "compare"
