"""The twin key of an experiment, shown when nothing can be trained under it any more."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdet.errors import IntegrityError, NotFound, StillPending
from hpcdet.store.folder.layout import ExperimentPaths


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
    """Return the key of an experiment that has ended.

    Raises:
        NotFound: the experiment has neither twins nor canaries.
        StillPending: it has not ended.
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
    return RevealView(paths.id, named.commitment, key)
