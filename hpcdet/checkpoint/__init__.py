"""Checkpoints: HDF5 files of all ranks and a manifest that commits them.

A state is a tree (``tree``): nested dict, list, tuple of str, int, float, bool, None, bytes,
numpy arrays and tensors. It has two parts: ``shared``, equal on all ranks, of which every rank
writes a share; and ``private``, of each rank alone. All ranks call together::

    saved = save(trial.checkpoint(step, attempt), shared, private, rank=r, world=w,
                 exchange=exchange, meta={"kind": "resume", "metric": 0.1}, previous=saved.root)
    loaded = restore(trial.checkpoints, r, w, exchange)   # newest valid one, or None
    loaded.shared, loaded.private, loaded.manifest.step, loaded.manifest.meta

``exchange(value) -> [value of rank 0, of rank 1, …]`` gathers plain values on all ranks; the
default is that of a single rank. Where tensors lie in parts, ``swap`` takes them to who hashes
them. ``private`` is None after a change of the number of ranks.
``begin`` copies the state into an ``Image`` and returns; threads write and commit it.

``load(folder)`` reads one given checkpoint, ``verify`` and ``content_digest`` check every byte
of it, ``sweep`` removes what the rules of retention do not keep, ``secure`` copies what they do
to project storage, where the site has that; ``link`` takes another trial's over. Errors:
``StateError`` (a value that cannot be saved, by its path), ``CheckpointFailed`` (disk full and
the like: the older ones are untouched, go on training), ``hpcdet.errors.IntegrityError``
(damaged), of which ``NewerFormat`` is one that is not: a newer hpcdet made the checkpoint, and it
is left alone.
"""

from hpcdet.checkpoint.format.host_image import Image
from hpcdet.checkpoint.format.manifest import Manifest, NewerFormat, committed
from hpcdet.checkpoint.keep.replicate import Secured, link, secure
from hpcdet.checkpoint.keep.retention import RetentionRules, sweep
from hpcdet.checkpoint.read.load import LoadedState, content_digest, load, newest, restore, verify
from hpcdet.checkpoint.state.tree import Sharded, StateError
from hpcdet.checkpoint.write.commit import CheckpointFailed
from hpcdet.checkpoint.write.dtensor import spread
from hpcdet.checkpoint.write.save import Attest, Exchange, Saved, Saving, alone, begin, save
from hpcdet.checkpoint.write.sharded_digests import Swap
from hpcdet.checkpoint.write.unchanged import Frozen

__all__ = [
    "Attest",
    "CheckpointFailed",
    "Exchange",
    "Frozen",
    "Image",
    "LoadedState",
    "Manifest",
    "NewerFormat",
    "RetentionRules",
    "Saved",
    "Saving",
    "Secured",
    "Sharded",
    "StateError",
    "Swap",
    "alone",
    "begin",
    "committed",
    "content_digest",
    "link",
    "load",
    "newest",
    "restore",
    "save",
    "secure",
    "spread",
    "sweep",
    "verify",
]
