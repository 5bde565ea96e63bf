"""RO-Crates: experiments as research objects, with an action for each attempt.

https://w3id.org/ro/crate/1.3 and the profile Process Run Crate of Workflow Run RO-Crate. Code,
config, provenance and tables are in the crate, and of a governed experiment its policy with the
account of each trial; checkpoints are named by digest and size.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hpcdet import __version__
from hpcdet.errors import UsageError
from hpcdet.interop.formats import csv_files
from hpcdet.interop.formats.exported import ExperimentExport, flat
from hpcdet.interop.formats.exported_tables import TABLES
from hpcdet.read.governed.governed_trials import governance
from hpcdet.read.views.checkpoints import CheckpointView
from hpcdet.read.views.items import encode
from hpcdet.read.views.trials import AttemptView
from hpcdet.store.fs import files, json_record, packed

_METADATA = "ro-crate-metadata.json"
_VERSION = "https://w3id.org/ro/crate/1.3"
_PROFILE = "https://w3id.org/ro/wfrun/process/0.6"
_CODE, _CONFIG, _PROVENANCE, _TABLES = "code/", "experiment.yaml", "provenance.json", "tables"
_GOVERNED = {
    "policy.yaml": ("application/yaml", "Which sources of data may change which layers"),
    "policy.json": ("application/json", "The policy as it was compiled, and enforced"),
    "policies": ("application/json", "A change of the policy"),
    "governance.json": (
        "application/json",
        "What layers were permitted and exposed to learn from, by trial: no record of influence",
    ),
}
_WELL = ("completed", "stopped", "paused")

Entity = dict[str, Any]


def export(what: ExperimentExport, to: str) -> Path:
    """Write the crate ``TO/ID``; returns its folder.

    Raises:
        UsageError: there is a folder of that name that is no crate.
        GovernanceBroken: the policy, or a change of it, is not what was written.
    """
    governed = _governed(what)
    folder = Path(to) / what.id
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _METADATA).is_file():
        raise UsageError("the folder exists and is no RO-Crate", where=str(folder))
    files.make_folder(folder)
    _copy_code(what.gathered.paths.code, folder / "code")
    for path in (what.gathered.paths.config, what.gathered.paths.provenance):
        files.replace(folder / path.name, packed.read_bytes(path))
    for name, data in governed.items():
        files.make_folder((folder / name).parent)
        files.replace(folder / name, data)
    made = csv_files.export(what, str(folder / f".{_TABLES}"))
    files.make_folder(folder / _TABLES)
    for name in TABLES:
        os.replace(made / f"{name}.csv", folder / _TABLES / f"{name}.csv")
    shutil.rmtree(made.parent)
    crate = {"@context": f"{_VERSION}/context", "@graph": [*_entities(what, folder, governed)]}
    text = json.dumps(crate, indent=1, ensure_ascii=False, allow_nan=False)
    files.replace(folder / _METADATA, text.encode(errors="replace"))
    return folder


def _copy_code(source: Path, target: Path) -> None:
    """Copy the files of the snapshot of the code, without links, in place of an earlier copy."""

    def others(folder: str, names: list[str]) -> list[str]:
        kinds = {name: (Path(folder) / name).lstat().st_mode for name in names}
        return [n for n, mode in kinds.items() if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)]

    shutil.rmtree(target, ignore_errors=True)
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, ignore=others)
    else:
        target.mkdir()


def _governed(what: ExperimentExport) -> dict[str, bytes]:
    """The policy of an experiment, and the account of each trial; empty if it has no policy."""
    paths = what.gathered.paths
    account = governance(what.gathered)
    if what.gathered.config.governance is None:
        return {}
    changes = sorted(paths.policy_changes.glob("*.json"))
    copied = [paths.policy, paths.compiled_policy, *changes]
    found = {str(one.relative_to(paths.root)): packed.read_bytes(one) for one in copied}
    return {**found, "governance.json": files.canonical(json_record.finite(encode(account)))}


def _entities(what: ExperimentExport, folder: Path, governed: Iterable[str]) -> Iterator[Entity]:
    config, closed = what.gathered.config, what.gathered.closed
    actions = [*_actions(what)]
    checkpoints = [_checkpoint(what, one) for one in what.checkpoints]
    inside = [*_files(folder, governed), _code(what)]
    yield {
        "@id": _METADATA,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": {"@id": _VERSION},
    }
    yield {
        "@id": "./",
        "@type": "Dataset",
        "name": what.status.name,
        "identifier": what.id,
        "description": config.description or f"The experiment {what.id}, trained by hpcdet",
        "datePublished": closed.at if closed and closed.at else what.created,
        "dateCreated": what.created,
        "license": "The owner of the experiment states none",
        "keywords": ", ".join(what.status.labels),
        "creativeWorkStatus": what.status.state,
        "conformsTo": {"@id": _PROFILE},
        "author": {"@id": _person(what)},
        "hasPart": _references([*inside, *checkpoints]),
        "mentions": _references(one for one in actions if one["@type"] == "CreateAction"),
    }
    yield {"@id": _PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.6"}
    name = str(what.gathered.provenance.get("user", "")) or "unknown"
    yield {"@id": _person(what), "@type": "Person", "name": name}
    yield {
        "@id": "#hpcdet",
        "@type": "SoftwareApplication",
        "name": "hpcdet",
        "softwareVersion": str(what.gathered.provenance.get("hpcdet", __version__)),
    }
    yield from inside
    yield from actions
    yield from checkpoints


def _references(entities: Iterable[Entity]) -> list[Entity]:
    return [{"@id": one["@id"]} for one in entities]


def _person(what: ExperimentExport) -> str:
    return f"#user-{quote(str(what.gathered.provenance.get('user', '')), safe='')}"


def _files(folder: Path, governed: Iterable[str]) -> Iterator[Entity]:
    listed = {
        _CONFIG: ("application/yaml", "The config, with every default filled in"),
        _PROVENANCE: ("application/json", "Where the experiment came from: code, host, packages"),
        **{f"{_TABLES}/{name}.csv": ("text/csv", f"The table of {name}") for name in TABLES},
        **{name: _GOVERNED[name.partition("/")[0]] for name in governed},
    }
    for name, (kind, text) in listed.items():
        yield {
            "@id": name,
            "@type": "File",
            "name": text,
            "encodingFormat": kind,
            "contentSize": str((folder / name).stat().st_size),
        }


def _code(what: ExperimentExport) -> Entity:
    git = what.gathered.provenance.get("git")
    commit = git.get("commit") if isinstance(git, Mapping) else None
    return {
        "@id": _CODE,
        "@type": ["Dataset", "SoftwareSourceCode"],
        "name": "The code that was trained",
        "runtimePlatform": f"hpcdet {__version__}",
        **({"version": commit} if commit else {}),
    }


def _actions(what: ExperimentExport) -> Iterator[Entity]:
    """Yield an action for each attempt, and the hyperparameters and results that they name."""
    rows = {row.trial: row for row in what.status.trials}
    saved: dict[tuple[int, int | None], list[CheckpointView]] = {}
    for one in what.checkpoints:
        saved.setdefault((one.trial, one.attempt), []).append(one)
    params = {number: [*_params(number, row.hyperparameters)] for number, row in rows.items()}
    for values in params.values():
        yield from values
    for attempt in what.attempts:
        results = [
            _checkpoint(what, one) for one in saved.get((attempt.trial, attempt.attempt), [])
        ]
        row = rows[attempt.trial]
        if attempt.attempt == row.attempts and row.best is not None:
            best = {
                "@id": f"#best-{attempt.trial}",
                "@type": "PropertyValue",
                "name": what.status.metric,
                "value": row.best,
                "description": f"The best validation, after {row.best_step} batches",
            }
            yield best
            results.append(best)
        yield _action(what, attempt, params[attempt.trial], results)


def _action(
    what: ExperimentExport,
    attempt: AttemptView,
    params: Iterable[Entity],
    results: Iterable[Entity],
) -> Entity:
    begun = [f"{attempt.trial}:{attempt.checkpoint}"] if attempt.checkpoint else []
    known = {f"{one.trial}:{one.name}": one for one in what.checkpoints}
    parents = [_checkpoint(what, known[name]) for name in begun if name in known]
    status = "Active" if not attempt.reason else "Failed"
    status = "Completed" if attempt.reason in _WELL else status
    times = {"startTime": attempt.start, "endTime": attempt.end}
    return {
        "@id": f"#attempt-{attempt.trial}.{attempt.attempt}",
        "@type": "CreateAction",
        "name": f"Trial {attempt.trial}, attempt {attempt.attempt}",
        "instrument": {"@id": _CODE},
        "agent": {"@id": _person(what)},
        "actionStatus": {"@id": f"http://schema.org/{status}ActionStatus"},
        "object": [{"@id": _CONFIG}, *_references([*params, *parents])],
        "result": _references(results),
        **{name: time for name, time in times.items() if time},
        **({"error": attempt.error or attempt.reason} if status == "Failed" else {}),
    }


def _params(trial: int, params: Mapping[str, Any]) -> Iterator[Entity]:
    for name, value in flat(params):
        plain = isinstance(value, bool | int | float | str)
        yield {
            "@id": f"#hyperparameter-{trial}-{quote(name, safe='', errors='replace')}",
            "@type": "PropertyValue",
            "name": name,
            "value": value if plain else json.dumps(value),
        }


def _checkpoint(what: ExperimentExport, one: CheckpointView) -> Entity:
    return {
        "@id": f"urn:hpcdet:{quote(what.id, safe='')}:{one.trial}:{one.name}",
        "@type": "File",
        "name": f"Checkpoint of trial {one.trial} after {one.step} batches",
        "creativeWorkStatus": one.state,
        **({"contentSize": str(one.bytes)} if one.bytes is not None else {}),
        **({"identifier": one.digest} if one.digest else {}),
        **({"dateCreated": one.time} if one.time else {}),
    }
