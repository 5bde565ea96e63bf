"""``YAML().load``, by PyYAML."""

from __future__ import annotations

from typing import Any

import yaml


class YAML:
    def __init__(self, **_: Any) -> None: ...

    def load(self, stream: Any) -> Any:
        return yaml.safe_load(stream)
