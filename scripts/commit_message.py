"""The commit-msg hook: a subject of at most 72 characters, an empty line, a body that says why."""

from __future__ import annotations

import sys
from pathlib import Path

SUBJECT = 72


def problem(message: str) -> str:
    """What is wrong with ``message``; empty if nothing is."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject, body = (lines or [""])[0], [line for line in lines[1:] if line.strip()]
    if not subject.strip():
        return "the first line is empty: say what the commit does"
    if len(subject) > SUBJECT:
        return f"the subject has {len(subject)} characters, {SUBJECT} at most: shorten it"
    if len(lines) > 1 and lines[1].strip():
        return "the second line is not empty: leave it between the subject and the body"
    if not body:
        return "there is no body: say in a sentence or two why the change is made"
    return ""


if __name__ == "__main__":
    found = problem(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if found:
        sys.exit(f"commit message: {found}")
