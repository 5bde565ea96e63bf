"""Loading of a site, by its name or by detection, into a resolved site."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from hpcdet import shipped
from hpcdet.errors import ConfigError, IntegrityError
from hpcdet.schedulers import opening as schedulers
from hpcdet.site.models import Detection, Site
from hpcdet.site.shell_variables import with_environment
from hpcdet.site_files import backend_keys
from hpcdet.site_files.detection import Host, recognise
from hpcdet.store.folder import trust
from hpcdet.store.fs import yaml12, yaml_bounds
from hpcdet.store.fs.yaml12 import Document, KeyPath

SUFFIX = ".yaml"
_OWN = ("name", "extends", "detect")
_NOBODY = "no site file recognises this host and there is no scheduler here"


class UnknownSite(ConfigError):
    """No such site or site file."""


@dataclass(frozen=True)
class Folder:
    """A folder of site files and its scope."""

    scope: str
    path: Path


def folders(kind: str = "sites") -> list[Folder]:
    """Return the search path for ``sites`` or ``templates``, nearest first.

    Project, user, ``$HPCDET_SITE_DIR``, system; what hpcdet ships comes last.
    """
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    user = Path(configured) if configured else Path("~/.config").expanduser()
    found = [
        Folder("project", Path.cwd() / ".hpcdet" / kind),
        Folder("user", user / "hpcdet" / kind),
    ]
    site_dir = os.environ.get("HPCDET_SITE_DIR", "")
    if site_dir:
        found.append(Folder("site", Path(site_dir) / kind))
    found.append(Folder("system", Path("/etc/hpcdet") / kind))
    found.append(Folder("shipped", shipped.folder({"sites": "site_configs"}.get(kind, kind))))
    return found


@dataclass(frozen=True)
class SiteFile:
    """A site file in the search path."""

    name: str
    scope: str
    path: Path


def names() -> list[SiteFile]:
    """Every site file in the search path, nearest first; a hidden one of the same name included."""
    return [
        SiteFile(path.stem, folder.scope, path)
        for folder in folders()
        for path in _by_rule(list(folder.path.glob(f"*{SUFFIX}")))
    ]


def _by_rule(paths: list[Path]) -> list[Path]:
    """Return the files of a folder, those of single clusters before those that fit many.

    These come in the reverse order of their names: there are wrappers that have the names of
    PBS's commands for Slurm, and none the other way round.
    """
    generic = [path for path in paths if path.stem.startswith("generic-")]
    return [*sorted(set(paths) - set(generic)), *sorted(generic, reverse=True)]


def load(name: str | None = None, host: Host | None = None, where: str = "") -> Site:
    """The site of that name, of ``$HPCDET_SITE``, or the one that fits this host.

    Args:
        name: a site's name or the path of a site file.
        host: what detection looks at; default: this host.
        where: what names the site, for people.

    Raises:
        UnknownSite: there is no such site; the hint lists those there are.
        ConfigError: the file is wrong; with its line.
    """
    asked, reason = (name, "asked for by name") if name else (None, "")
    if asked is None and os.environ.get("HPCDET_SITE"):
        asked, reason = os.environ["HPCDET_SITE"], "$HPCDET_SITE names it"
        where = "$HPCDET_SITE"
    if asked is None:
        found, reason = detect(host)
        site = _build(_chain(found), reason or _NOBODY)
        site._fallback = not reason
        return site
    return _build(_chain(_find(asked, where=where)), reason)


def detect(host: Host | None = None) -> tuple[SiteFile, str]:
    """The first site file that recognises this host, and the reason for people.

    ``local`` without a reason is the answer where none does.
    """
    host = host or Host()
    files = names()
    for file in files:
        for rule in _rules(file):
            reason = recognise(_rule(rule, file), host)
            if reason:
                return file, reason
    local = next(file for file in reversed(files) if file.name == "local")
    return local, ""


def _rules(file: SiteFile) -> list[Any]:
    """Return the rules under ``detect`` that a file has or takes from others of its name."""
    own = _read(file).values
    if "detect" not in own and "extends" in own:
        own = _merge(_chain(file))[0]
    return own.get("detect") or []


def _rule(rule: Any, file: SiteFile) -> Detection:
    try:
        detection = Detection.model_validate(rule)
    except ValidationError as error:
        raise ConfigError(
            "wrong rule under detect", where=str(file.path), hint=str(error)
        ) from error
    return detection


def from_resolved(path: Path) -> Site:
    """The site in an experiment's ``site.yaml``; keys of other versions of hpcdet are ignored.

    Everybody who runs something for an experiment begins here, so that one which others may
    write is refused by all of them.

    Raises:
        ConfigError: the file cannot be read or does not describe a site, or somebody else may
            change the experiment.
    """
    try:
        for mine in (path.parent, path):
            trust.refuse_writable_by_others(mine, "experiment")
        values = yaml_bounds.mapping(path)  # what `dump` wrote, in its own kind of YAML
        return Site.model_validate(_known(Site, values))
    except OSError as error:
        what = f"cannot read the site: {error.strerror}"
        raise ConfigError(what, where=str(path)) from error
    except (yaml.YAMLError, ValueError, IntegrityError) as error:
        raise ConfigError("not a resolved site", where=str(path), hint=str(error)) from error


def dump(site: Site) -> bytes:
    """The text of ``site.yaml``."""
    return yaml.safe_dump(site.plain(), sort_keys=False, allow_unicode=True, width=100).encode()


def _known(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` without the keys that the model and those inside it do not have."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    kept: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            if model.model_config.get("extra") == "allow":  # a key of a backend
                kept[name] = value
            continue
        inner = _inner(fields[name].annotation)
        if inner is None or value is None:
            kept[name] = value
        elif fields[name].annotation is inner or inner in _optional(fields[name].annotation):
            kept[name] = _known(inner, value)
        elif isinstance(value, list):
            kept[name] = [_known(inner, item) for item in value]
        else:
            kept[name] = {key: _known(inner, item) for key, item in value.items()}
    return kept


def _optional(annotation: Any) -> tuple[Any, ...]:
    arguments = get_args(annotation)
    return arguments if type(None) in arguments else ()


def _inner(annotation: Any) -> type[BaseModel] | None:
    """The model inside ``X``, ``X | None``, ``list[X]`` or ``dict[str, X]``."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _find(
    name: str, behind: Path | None = None, folder: Path | None = None, where: str = ""
) -> SiteFile:
    """The file of a site.

    Args:
        name: of a site, or the path of a file, relative to ``folder`` (default: where we are).
        behind: a file of that name; the next one in the search path is wanted.
        where: what names it, for people.
    """
    if behind is None and (os.sep in name or name.endswith(SUFFIX)):
        path = (folder or Path.cwd()) / Path(name).expanduser()
        if not path.is_file():
            raise UnknownSite(f"no site file {path}", where=where)
        return SiteFile(path.stem, "file", path)
    files = names()
    paths = [file.path for file in files]
    rest = files[paths.index(behind) + 1 :] if behind in paths else files
    for file in rest:
        if file.name == name:
            return file
    known = sorted({file.name for file in files})
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    hint = f"{meant}known sites: {', '.join(known)}; `hpcdet site ls` shows where"
    raise UnknownSite(f"no site {name!r}", where=where, hint=hint)


def _chain(file: SiteFile) -> list[Document]:
    """The file's layers, the one it extends (and so on) first."""
    layers: list[Document] = []
    seen: list[Path] = []
    while True:
        if file.path in seen:
            raise ConfigError("a site file extends itself", where=str(file.path))
        layer = _read(file)
        layers.insert(0, layer)
        seen.append(file.path)
        parent = layer.values.get("extends")
        if parent is None:
            return layers
        # a file may extend the next one of its own name: a user's changes to a shipped site
        behind = file.path if parent == file.name else None
        where = f"{layer.origin(('extends',))}: extends"
        file = _find(str(parent), behind, file.path.parent, where)


def _read(file: SiteFile) -> Document:
    if file.scope != "shipped":
        trust.refuse_writable_by_others(file.path, "site file")
    layer = yaml12.read(file.path)
    if not layer.values:
        raise ConfigError("the site file is empty", where=layer.source)
    return layer


def _merge(layers: list[Document]) -> tuple[dict[str, Any], dict[KeyPath, Document]]:
    """The layers merged, without what is each file's own: name, parent, how it is recognised.

    Rules of detection come along from files of the same name only: whoever extends
    a generic site for one cluster does not want it taken for every cluster.
    """
    own = layers[-1]
    name = Path(own.source).stem
    stripped = [
        layer
        if Path(layer.source).stem == name
        else replace(layer, values={k: v for k, v in layer.values.items() if k not in _OWN})
        for layer in layers
    ]
    merged: dict[str, Any] = {}
    origins: dict[KeyPath, Document] = {}
    for layer in stripped:
        _lay(merged, layer.values, (), layer, origins)
    merged["name"] = own.values.get("name", name)
    merged["extends"] = own.values.get("extends")
    return merged, origins


def _lay(
    into: dict[str, Any],
    values: Mapping[str, Any],
    key: KeyPath,
    layer: Document,
    origins: dict[KeyPath, Document],
) -> None:
    """Lay the values of a file over others: mappings merge, everything else replaces."""
    for name, value in values.items():
        inner = (*key, str(name))
        if isinstance(value, dict) and isinstance(into.get(name, {}), dict):
            _lay(into.setdefault(name, {}), value, inner, layer, origins)
        else:
            into[name] = value
            origins[inner] = layer


def _build(layers: list[Document], reason: str) -> Site:
    merged, origins = _merge(layers)
    own = layers[-1]
    try:
        site = Site.model_validate(merged)
    except ValidationError as error:
        raise _explain(error, origins, own) from error
    site._origins = {".".join(key): layer.origin(key) for key, layer in origins.items()}
    facts = backend_keys.checked(site, origins, own).facts
    site._open = frozenset(key for key in facts.asked if _said(merged, key) is None)
    site._source = own.source
    site._reason = reason
    return with_environment(site)


def _said(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of ``a.b``; None if it is absent."""
    part, _, name = key.partition(".")
    return (values.get(part) or {}).get(name)


def _explain(
    error: ValidationError, origins: Mapping[KeyPath, Document], own: Document
) -> ConfigError:
    """Return the first error with its key, file and line, and the nearest known key."""
    # what is wrong says more than what is missing
    first = min(error.errors(), key=lambda one: one["type"] == "missing")
    key = tuple(str(part) for part in first["loc"])
    # pydantic names the member of a union behind the key; the file has no such key
    known = [k for k in origins if k[: len(key)] == key] or [
        k for k in origins for n in range(len(key), 0, -1) if k[:n] == key[:n]
    ]
    layer = origins[known[0]] if known else own
    where = f"{layer.origin(key)}: {'.'.join(key)}"
    if first["type"] == "extra_forbidden":
        beside = _keys(key[:-1])
        close = difflib.get_close_matches(key[-1], beside, n=1)
        hint = (
            f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(beside))}"
        )
        return ConfigError(f"unknown key {key[-1]!r}", where=where, hint=hint)
    if first["type"] == "missing":
        hint = f"write {key[-1]}: one of {', '.join(schedulers.names())}"
        return ConfigError(f"there is no {key[-1]}", where=where, hint=hint)
    return ConfigError(f"{first['msg']} (it is {first['input']!r})", where=where)


def _keys(key: KeyPath) -> list[str]:
    """The keys that a site file may have below ``key``."""
    model: type[BaseModel] = Site
    for part in key:
        field = _fields(model).get(part)
        inner = _inner(field.annotation) if field is not None else None
        # the name of a partition or an index in a list: stay in its model
        model = inner if inner is not None else model
    return list(_fields(model))


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def walk(values: Mapping[str, Any], key: KeyPath = ()) -> Iterator[tuple[str, Any]]:
    """Every leaf of plain data with its dotted key, for ``site show --origin``."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from walk(value, (*key, str(name)))
        else:
            yield ".".join((*key, str(name))), value
