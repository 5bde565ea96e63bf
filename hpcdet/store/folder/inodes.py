"""The number of files and folders of a trial (``layout`` lists them)."""

from __future__ import annotations


def of_trial(ranks: int, checkpoints: int, attempts: int = 0) -> int:
    """Return the number of inodes of one trial.

    Args:
        checkpoints: committed ones, each a folder with a manifest and a shard of each rank.
        attempts: while it goes on; 0 once it has ended and these are packed.
    """
    of_checkpoints = 1 + checkpoints * (ranks + 2) if checkpoints else 0
    if not attempts:
        return 3 + of_checkpoints  # its folder, trial.json, the archive
    controls = 1 + attempts
    # folder, claim, journal, verdict, end, rendezvous, logs, the launcher's and the ranks', and
    # the profiles of those above 0
    return 3 + controls + attempts * (7 + 2 * ranks) + of_checkpoints
