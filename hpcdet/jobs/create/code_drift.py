"""Differences between the user's code now and the code that an experiment runs."""

from __future__ import annotations

import os
from pathlib import Path

from hpcdet.errors import ConfigError
from hpcdet.jobs.create import snapshot
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files


def code_differs(paths: ExperimentPaths) -> list[str]:
    """Return files of the model folder that differ from the snapshot, each with how.

    Empty also where the folder is gone or cannot be looked at: the snapshot is what runs; and of
    somebody else's experiment, which could name any folder.
    """
    if paths.root.stat().st_uid != os.getuid():
        return []
    record = files.read_json(paths.provenance)
    if not isinstance(record, dict) or not record.get("model_dir"):
        return []
    then, folder = record.get("code", {}), Path(record.get("model_dir", ""))
    more = [path for path in map(Path, record.get("include", [])) if path.exists()]
    try:
        now = {entry.path: entry for entry in snapshot.scan(folder, paths.root.parent, more)}
        both = now.keys() & then.keys()
        changed = [path for path in both if not snapshot.is_same(now[path], then[path])]
    except (ConfigError, OSError):
        return []
    said = {
        **dict.fromkeys(now.keys() - then.keys(), "added"),
        **dict.fromkeys(then.keys() - now.keys(), "removed"),
        **dict.fromkeys(changed, "changed"),
    }
    return [f"{path} ({how})" for path, how in sorted(said.items())]
