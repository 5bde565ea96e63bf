"""One round of copying to the object store of an experiment, in a process of its own.

The holder of the lease starts it, and it ends with that: where its standard input does, or another
term has begun.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcdet.checkpoint.keep import stored_copies
from hpcdet.checkpoint.keep.retention import RetentionRules
from hpcdet.errors import ConfigError, UsageError
from hpcdet.store.config import resolved_config
from hpcdet.store.config.sections.checkpoint_storage import CheckpointStorage
from hpcdet.store.decisions.lease import Term
from hpcdet.store.folder import trust
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.objects import store_place
from hpcdet.store.objects.object_store import ObjectStore
from hpcdet.store.objects.store_place import StorePlace

_SAY_EVERY_S = 1.0
_NICE = 10


def run(arguments: argparse.Namespace, say: Callable[[dict[str, Any]], None]) -> int:
    """Copy and remove what is due; says what was done, and on the way that it is at work.

    Raises:
        ConfigError: the experiment has no store, or a secret of it is not to be had here.
        Unavailable: the store's packages are not installed.
        OSError: the records cannot be written.
    """
    if arguments.beside:
        os.nice(_NICE)
        threading.Thread(target=_end_with_input, daemon=True).start()
    paths = ExperimentPaths(arguments.experiment)
    config = resolved_config.load(paths.config)
    place_of = _own_store(paths, config.checkpoint_storage)
    last = time.monotonic()

    def at_work(_: int) -> None:
        nonlocal last
        if time.monotonic() - last > _SAY_EVERY_S:
            last = time.monotonic()
            say({"at_work": True})

    def decides() -> bool:
        return arguments.term is None or Term.read(paths.term(arguments.term + 1)) is None

    store = ObjectStore(place_of, at_work)
    rules = RetentionRules.of(config)
    given = (arguments.report, not arguments.only_add)
    try:
        done = stored_copies.bring_up_to_date(paths, rules, store, decides, *given)
    except stored_copies.Superseded:
        done = stored_copies.CopyRound()
    say(vars(done))
    return 0


def place(url: str, experiment: Path | None) -> StorePlace:
    """Return the place of a URL, in the store of an experiment if one is given."""
    if experiment is None:
        return store_place.of_url(url)
    paths = ExperimentPaths(experiment)
    storage = resolved_config.load(paths.config).checkpoint_storage
    return store_place.of_url(url, _own_store(paths, storage))


def _own_store(paths: ExperimentPaths, storage: CheckpointStorage) -> StorePlace:
    """Return the store of an experiment that no other user may change.

    Its config says which server is called, and which files and variables go there as credentials.
    """
    if not storage.remote:
        hint = "set checkpoint_storage.type, or name a URL without --store-of"
        raise UsageError("it has no object store", where=paths.id, hint=hint)
    if not trust.is_trusted(owner := paths.root.stat().st_uid):
        what = f"it belongs to {trust.user(owner)}, whose config would say where your secrets go"
        hint = "name a URL without --store-of: the store's own tools know the credentials"
        raise ConfigError(what, where=paths.id, hint=hint)
    trust.refuse_to_run(paths.code)
    return store_place.of_storage(storage, paths.secrets)


def _end_with_input() -> None:
    """End this process at once where the one that started it has ended."""
    while os.read(0, 4096):
        pass
    os._exit(1)
