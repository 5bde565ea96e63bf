"""Names of models and of their versions, as users write them.

``model:digits`` is the newest version, ``model:digits:3`` version 3, ``model:digits@production``
that of an alias, ``model:digits@^1.4`` the greatest semantic version of a range.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpcdet.errors import UsageError
from hpcdet.registry.semantic_versions import VersionRange
from hpcdet.store.folder.names import MODEL_PREFIX as PREFIX

LATEST = "latest"
"""The alias that every model has: its newest version that is not archived."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_ALIAS = re.compile(r"[a-z][a-z0-9._-]{0,127}")
_LABEL = re.compile(r"[^\s,\x00-\x1f\x7f][^,\x00-\x1f\x7f]{0,199}")
_HINT = "model:NAME:3, model:NAME@ALIAS, model:NAME@^1.4, or model:NAME for the newest version"


@dataclass(frozen=True)
class ModelReference:
    """A model, or one of its versions.

    Attributes:
        number: of the version; 0: none is named by its number.
        at: alias or range behind ``@``; "" without one.
    """

    name: str
    number: int = 0
    at: str = ""

    def __str__(self) -> str:
        return f"{PREFIX}{self.name}" + (f":{self.number}" if self.number else "") + self._at

    @property
    def _at(self) -> str:
        return f"@{self.at}" if self.at else ""

    @property
    def whole(self) -> bool:
        """True if no version is named."""
        return not self.number and not self.at

    @property
    def range(self) -> VersionRange | None:
        """The range of semantic versions behind ``@``; None for an alias."""
        return VersionRange.parse(self.at) if self.at else None


def is_reference(text: str) -> bool:
    """True if a text names a model, and not an experiment or a path."""
    return text.startswith(PREFIX)


def reference(text: str) -> ModelReference:
    """Return what a text names; the prefix ``model:`` may be missing.

    Raises:
        UsageError: it is no name of a model or version.
    """
    plain = text.removeprefix(PREFIX)
    name, sign, at = plain.partition("@")
    if not sign:
        name, colon, number = plain.partition(":")
        if colon:
            if not re.fullmatch(r"[1-9]\d{0,8}", number):
                raise UsageError("it is no version of a model", where=text[:200], hint=_HINT)
            return ModelReference(model_name(name), int(number))
        return ModelReference(model_name(name))
    if VersionRange.parse(at) is None and not _ALIAS.fullmatch(at):
        raise UsageError("it is neither an alias nor a range", where=text[:200], hint=_HINT)
    return ModelReference(model_name(name), at=at)


def model_name(text: str) -> str:
    """Return a model's name. Raises UsageError: it is none."""
    if not _NAME.fullmatch(text):
        hint = "small letters, digits, and . _ - behind the first one"
        raise UsageError("it is no name of a model", where=text[:200], hint=hint)
    return text


def is_model_name(text: str) -> bool:
    """True if a folder of this name may be a model's."""
    return _NAME.fullmatch(text) is not None


def alias(text: str) -> str:
    """Return an alias. Raises UsageError: it is none, or one that cannot be given."""
    if text == LATEST:
        raise UsageError("every model has this alias: its newest version", where=text)
    if not _ALIAS.fullmatch(text):
        hint = "a small letter, then small letters, digits, and . _ -"
        raise UsageError("it is no alias", where=text[:200], hint=hint)
    return text


def label(text: str) -> str:
    """Return a label. Raises UsageError: it is none."""
    if not _LABEL.fullmatch(text):
        raise UsageError("it is no label", where=text[:200], hint="one line without commas")
    return text
