"""Runs a searcher class of the user's behind the line protocol of ``search.methods.program``.

    python -m hpcdet.search.host my_search:MySearch < questions > answers

The class is made with what the program is told of the search, a dict, and has the two methods
of ``search.api.events.Searcher``: ``initial`` and ``on_event``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from hpcdet.search.api import codec


def main(entrypoint: str) -> None:
    """Answer lines until the input ends. What the class prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, _, name = entrypoint.partition(":")
    make = getattr(importlib.import_module(module), name)
    method: Any = None
    for line in sys.stdin:
        question = json.loads(line)
        if method is None:
            method = make(question["search"])
        state = question["state"]
        event = codec.decode_event(question["event"])
        actions: list[Any] = []
        if event is not None:
            state = method.initial() if state is None else state
            state, actions = method.on_event(state, event)
        said = {"state": state, "actions": [codec.encode_action(action) for action in actions]}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
