"""Losses by a purge of scratch, for experiments with a part there."""

from __future__ import annotations

from hpcdet.read.experiment.gather import Gathered, GatheredTrial
from hpcdet.store.folder import scratch
from hpcdet.store.trials import standing


def lines(gathered: Gathered) -> list[str]:
    """Return a sentence for each loss that matters for reading or resuming the experiment."""
    paths = gathered.paths
    if not paths.split:
        return []
    found = []
    if scratch.is_gone(paths):
        found.append(
            f"its folder on scratch is gone ({scratch.target(paths)}), and logs and checkpoints to "
            "go on from with it; what was kept is on project storage"
        )
    if gathered.closed is None:
        found += [line for trial in gathered.trials if (line := _behind(trial))]
    return found


def _behind(trial: GatheredTrial) -> str:
    """Describe a waiting trial that would go on from less than it had reached; "" if not so."""
    if trial.standing.state in ("running", "done", "stopped", "failed"):
        return ""
    saved = [line["name"] for a in trial.attempts for line in a.of_kind("checkpoint")]
    if not saved or saved[-1] in standing.checkpoints(trial.paths):
        return ""
    left = standing.latest_checkpoint(trial.paths)
    start = f"from {left}" if left else "from the beginning"
    return f"trial {trial.number}: {saved[-1]} is not there any more, it goes on {start}"
