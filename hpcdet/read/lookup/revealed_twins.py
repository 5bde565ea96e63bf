"""The twin key of an experiment, shown when nothing is trained under it any more.

A record of that is written once, and whoever would train on is refused from then on
(``policy.named_policy``).
"""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from dataclasses import dataclass

from hpcdet.errors import ConfigError, IntegrityError, NotFound, StillPending, Unavailable
from hpcdet.read.lookup import find
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, Revealed
from hpcdet.store.fs import files


@dataclass(frozen=True)
class RevealView:
    """The key of an experiment's twins and canaries."""

    experiment: str
    """The experiment's id."""
    commitment: str
    """``sha256:…``, as it was written down at submission."""
    key: str
    """The key, of which it is the commitment: anybody can toss coins and draw codes again."""


def reveal(paths: ExperimentPaths) -> RevealView:
    """Return the key of an experiment that has ended, and record that it was shown.

    Experiments beside it with the same key, as its forks have, get the same record.

    Raises:
        NotFound: the experiment has neither twins nor canaries.
        StillPending: it, or one beside it with the same key, has not ended.
        Unavailable: the record cannot be written.
        PolicyRefused: the key cannot be read here (P10).
        IntegrityError: it is not the one that was committed to.
    """
    # other verbs on policies need none of these
    from hpcdet.policy import experiment_policy
    from hpcdet.policy.memorization import twin_keys
    from hpcdet.read.experiment.gather import gather
    from hpcdet.read.experiment.states import experiment_state

    gathered = gather(paths)
    named = gathered.config.governance
    if named is None or not named.commitment:
        raise NotFound("the experiment has neither twins nor canaries", where=paths.id)
    if gathered.closed is None:
        raise StillPending(
            f"the experiment is {experiment_state(gathered)[0]}: who knows the key knows which "
            "records are withheld or planted",
            where=paths.id,
            hint=f"wait for its end, or end it: hpcdet cancel {paths.id}",
        )
    key = experiment_policy.key(paths, named, "twin_key")
    if not twin_keys.reveals(key.encode(), named.commitment):
        raise IntegrityError(
            "the twin key is not the one that was committed to",
            where="governance.twin_key",
            hint="put back the key that was there at submission",
        )
    sharing = [paths, *_sharing(paths, named.commitment)]
    for one in sharing[1:]:
        if Closed.read(one.closed) is None:
            raise StillPending(
                f"{one.id} has the same key and has not ended: who knows the key knows which "
                "records it withholds or plants",
                where=paths.id,
                hint=f"wait for its end, or end it: hpcdet cancel {one.id}",
            )
    record = Revealed(paths.id, getpass.getuser(), files.now())
    for one in sharing:
        try:
            record.write_once(one.revealed)
        except OSError as error:
            what = f"cannot record it: {error.strerror}"
            raise Unavailable(what, where=str(one.revealed)) from error
    return RevealView(paths.id, named.commitment, key)


def _sharing(paths: ExperimentPaths, commitment: str) -> Iterator[ExperimentPaths]:
    """Yield the other experiments beside one that have its twin key."""
    for one in find.experiments(paths.root.parent):
        if one.root.name == paths.root.name:
            continue
        try:
            named = resolved_config.load(one.config).governance
        except (ConfigError, IntegrityError):
            continue
        if named is not None and named.commitment == commitment:
            yield one
