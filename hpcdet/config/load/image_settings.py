"""``environment.image`` and what belongs to it, as people write them.

The user of a registry is needed where images are fetched, when an experiment is made; no record
has it.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet.config.check.problems import Problem
from hpcdet.errors import ConfigError
from hpcdet.store.config.sections.image_keys import ACCELERATORS, is_path
from hpcdet.store.fs import files

IMAGE = "environment.image"
_AUTH, _FORCE = "registry_auth", "force_pull_image"
_OF_AUTH = ("username", "password", "server_address", "serveraddress", "email")
_MOUNTS = "bind_mounts"


@dataclass(frozen=True)
class RegistryUser:
    """``environment.registry_auth``.

    Attributes:
        password: ``{env: NAME}`` or ``{file: PATH}``.
        server: "": that of the reference.
    """

    username: str
    password: Mapping[str, str]
    server: str = ""

    def secret(self) -> str:
        """Return the password.

        Raises:
            ConfigError: what it refers to is not there.
        """
        (form, name), where = next(iter(self.password.items())), f"environment.{_AUTH}.password"
        if form == "env":
            if name in os.environ:
                return os.environ[name]
            raise ConfigError(f"${name} is not set here", where=where)
        try:
            return files.read(Path(name).expanduser()).decode().strip()
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror}", where=where) from error


def separate(
    values: dict[str, Any], ignored: Container[str]
) -> tuple[RegistryUser | None, list[tuple[Problem, bool]]]:
    """Take the user of a registry out of a config, and the image if it is to be ignored.

    Returns:
        The user, and what was found: a problem and whether it is an error. No message holds a
        value of the user's.
    """
    section = values.get("environment")
    if not isinstance(section, dict):
        return None, []
    user = section.pop(_AUTH, None)
    if IMAGE in ignored and section.get("image") is not None:
        for name in ("image", _FORCE):
            section.pop(name, None)
        return None, [(Problem(IMAGE, "has no effect: the code runs on the host"), False)]
    image = section.get("image")
    if isinstance(image, dict):
        section["image"] = image = _by_accelerator(image)
    if image is None:
        found = [Problem(f"environment.{name}", _UNUSED) for name in (_FORCE,) if section.get(name)]
        found += [Problem(f"environment.{_AUTH}", _UNUSED)] if user is not None else []
        return None, [(problem, False) for problem in found]
    login, wrong = _user(user)
    return login, [(problem, True) for problem in (*wrong, *_unusable(image))]


_UNUSED = "has no effect: there is no environment.image"


def _by_accelerator(image: dict[Any, Any]) -> dict[Any, Any]:
    """Return a map of images without empty entries; ``gpu`` was Determined's word for cuda."""
    return {"cuda" if kind == "gpu" else kind: one for kind, one in image.items() if one}


def _unusable(image: Any) -> Iterator[Problem]:
    if isinstance(image, dict):
        if unknown := sorted(str(kind) for kind in image if kind not in ACCELERATORS):
            yield Problem(f"{IMAGE}.{unknown[0]}", "unknown key", f"{', '.join(ACCELERATORS)}")
        elif not image:
            yield Problem(IMAGE, "the map names no image", "cuda: docker://NAME:TAG")
    texts = image.values() if isinstance(image, dict) else [image]
    for text in texts:
        if isinstance(text, str) and not text.strip():
            yield Problem(IMAGE, "expected an image, not an empty text", "leave it out")
        elif isinstance(text, str) and not is_path(text) and any(c.isspace() for c in text):
            yield Problem(IMAGE, f"{text!r} is no reference: a space is in it")


def _user(given: Any) -> tuple[RegistryUser | None, list[Problem]]:
    key = f"environment.{_AUTH}"
    if given is None:
        return None, []
    if not isinstance(given, dict):
        return None, [Problem(key, "expected a map", "{username: NAME, password: {env: NAME}}")]
    if unknown := sorted(str(name) for name in given if name not in _OF_AUTH):
        what = f"unknown key {unknown[0]}"
        return None, [Problem(key, what, f"those there are: {', '.join(_OF_AUTH[:3])}")]
    username, password = given.get("username"), given.get("password")
    reference = (
        isinstance(password, dict)
        and len(password) == 1
        and next(iter(password)) in ("env", "file")
        and isinstance(next(iter(password.values())), str)
    )
    hint = "{username: NAME, password: {env: NAME}}, or {file: PATH} for the password"
    if isinstance(password, str):
        what = "expected a reference, not the password itself: copies of the config would have it"
        return None, [Problem(f"{key}.password", what, hint)]
    if not isinstance(username, str) or not isinstance(password, dict) or not reference:
        return None, [Problem(key, "expected a user's name and a password", hint)]
    server = given.get("server_address") or given.get("serveraddress") or ""
    return RegistryUser(username, password, str(server)), []
