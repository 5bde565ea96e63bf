"""The commit: what all ranks report becomes a manifest, and so a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hpcdet.checkpoint.format.manifest import Manifest, state_digest
from hpcdet.checkpoint.format.shard import Shard
from hpcdet.checkpoint.state.tree import StateError
from hpcdet.checkpoint.write.leaf_plan import Content, Report, digest
from hpcdet.errors import Unavailable
from hpcdet.store.fs import files, json_record
from hpcdet.store.trials.manifests import ManifestMeta
from hpcdet.store.trials.standing import MANIFEST


class CheckpointFailed(Unavailable):
    """The checkpoint could not be written; the ones before it are as they were."""

    code = "CHECKPOINT_FAILED"


def commit(
    folder: Path,
    everyone: Sequence[Report],
    content: Content,
    meta: Callable[[str], Mapping[str, Any]],
    previous: str,
) -> dict[str, Any]:
    """Rank 0: make the folder a checkpoint.

    Args:
        content: what the shared state says.
        meta: gives what is remembered beside the state, from the digest of its content.

    Returns:
        What ``Saved`` says of it.

    Raises:
        CheckpointFailed: a rank says so, or its file is not what it says.
        StateError: the ranks' states do not fit together.
        OSError: the disk is full or fails.
    """
    failed = [rank for rank, report in enumerate(everyone) if "error" in report]
    if failed:
        first = min(failed, key=lambda rank: "echo" in everyone[rank])
        raise CheckpointFailed(f"rank {first}: {everyone[first]['error']}")
    for rank, report in enumerate(everyone):
        if report["structure"] != everyone[0]["structure"]:
            raise StateError(
                f"ranks 0 and {rank} have tensors of different names, types or shapes",
                where="shared state",
                hint="state that differs between ranks belongs into the private part",
            )
    shards = tuple(
        Shard.decode(report[which])
        for which in ("shard", "frozen")
        for report in everyone
        if which in report
    )
    for each in shards:
        with (folder / each.file).open("rb") as file:
            file.seek(0, 2)
            if file.tell() != each.bytes:
                raise CheckpointFailed(f"{each.file} has {file.tell()} bytes, not {each.bytes}")
    digests = {name: digest for report in everyone for name, digest in report["shared"].items()}
    shared = digest(content(digests.__getitem__))
    private = tuple(report["private"] for report in everyone)
    whole = state_digest(shared, private)
    made = Manifest(
        name=folder.name,
        world=len(everyone),
        digest=whole,
        shared=shared,
        private=private,
        shards=shards,
        meta=cast(ManifestMeta, {key: _json(value) for key, value in meta(whole).items()}),
        prev_root=previous,
        schema=2 if everyone[0]["parts"] else 1,
    ).sealed()
    files.replace(folder / MANIFEST, made.encode())
    files.sync_folder(folder.parent)
    linked = sum(r["frozen"]["bytes"] for r in everyone if r.get("linked"))
    return {"digest": made.digest, "bytes": made.bytes, "linked": linked, "root": made.root}


def _json(value: Any) -> Any:
    """A metric may be NaN, which JSON cannot say."""
    return json_record.number(value) if isinstance(value, float) else value
