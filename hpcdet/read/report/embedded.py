"""Scripts and data inside a page: compressed, as text, and allowed by their hashes alone.

The page's own script unpacks the others with ``DecompressionStream``. ECharts is the official
``echarts.min.js`` (``templates/report/vendor``), unchanged.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENGINE = "vendor/echarts.min.js"
OWN = ("state.js", "table.js", "curves.js", "search.js", "main.js")
"""The page's own script, in the order of its parts."""
LIVE = "live.js"


@dataclass(frozen=True)
class Scripts:
    """The scripts of a page.

    Attributes:
        own: text of the page's own script.
        engine, data: compressed, as base64.
        digests: of what may run, for the content security policy.
    """

    own: str
    engine: str
    data: str
    digests: list[str]


def digest(text: str) -> str:
    """Return the hash of a script or style as a content security policy has it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def packed(data: bytes) -> str:
    """Return data compressed, as base64; the same data give the same text."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def scripts(folder: Path, data: Any, live: bool = False) -> Scripts:
    """Return the scripts of a page with this data.

    Args:
        folder: of the report's templates.
        live: the page asks its server for a newer one.
    """
    names = (*OWN, LIVE) if live else OWN
    parts = "\n".join((folder / "script" / name).read_text() for name in names)
    own = f'"use strict";\n(() => {{\n{parts}\n}})();\n'
    engine, engine_digest = _engine(folder)
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return Scripts(
        own=own,
        engine=engine,
        data=packed(text.encode()),
        digests=[digest(own), engine_digest],
    )


@functools.cache
def _engine(folder: Path) -> tuple[str, str]:
    """Return the charts' engine, packed, and its digest; a process packs it once."""
    text = (folder / ENGINE).read_text()
    return packed(text.encode()), digest(text)
