"""``data.secrets``: references stay in the config, literals leave it.

``{env: NAME}`` and ``{file: PATH}`` are resolved on the node (``store.secrets``). Anything else
is taken out and goes to a file of its own, mode 0600; ``{stored: NAME}`` takes its place.
"""

from __future__ import annotations

from typing import Any

from hpcdet.config.problems import Problem

_FORMS = ("env", "file")


def separate(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """Take the literals out of ``data``.

    Returns:
        ``data`` with references only, the literals by name, and what is wrong. No message
        holds a value.
    """
    secrets = data.get("secrets")
    if secrets is None:
        return data, {}, []
    if not isinstance(secrets, dict):
        what = "expected a map of names to secrets"
        return data, {}, [Problem("data.secrets", what, "secrets: {token: {env: API_TOKEN}}")]
    references: dict[str, Any] = {}
    literals: dict[str, Any] = {}
    problems = []
    for name, value in secrets.items():
        if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _FORMS:
            references[name] = value
            if not isinstance(next(iter(value.values())), str):
                problems.append(Problem(f"data.secrets.{name}", "expected text as the reference"))
        elif isinstance(value, dict) and value.keys() == {"stored"}:
            what = "the secret itself stayed with another experiment"
            problems.append(Problem(f"data.secrets.{name}", what, "{env: NAME} or {file: PATH}"))
        else:
            references[name] = {"stored": name}
            literals[name] = value
    return {**data, "secrets": references}, literals, problems
