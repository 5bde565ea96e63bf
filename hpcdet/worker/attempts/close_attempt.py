"""The record of why an attempt ended, written once its processes have exited."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from hpcdet.launchers import opening as launchers
from hpcdet.store.config.sections.log_policies import LogPolicy
from hpcdet.store.decisions import wakeup
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import End, Verdict
from hpcdet.store.fs import files
from hpcdet.store.trials import progress
from hpcdet.store.trials.controls import in_force
from hpcdet.worker.attempts import evidence, exit_reason, matched_log_policies
from hpcdet.worker.attempts.exit_reason import Says
from hpcdet.worker.attempts.lane import Lane


@dataclass(frozen=True)
class Circumstances:
    """The circumstances in which an attempt's processes ended; see ``exit_reason.Evidence``."""

    noticed: bool
    time_up: bool
    oom: bool
    stands: bool
    says: Says = ()
    reclaims: bool = False
    resized: bool = False


def spoke(lane: Lane) -> bool:
    """True if an attempt has written its verdict; False while the storage is unavailable."""
    with contextlib.suppress(OSError):
        return lane.attempt.verdict.exists()
    return False


def conclude(
    paths: ExperimentPaths,
    lane: Lane,
    then: Circumstances,
    nodes: Sequence[str],
    closed_by: str,
    policies: Sequence[LogPolicy] = (),
) -> End:
    """Write the end of an attempt, and return the one that holds."""
    attempt = lane.attempt
    exit_ = lane.step.result() if lane.step else None
    launcher = evidence.tail(attempt.launcher_log) or lane.said
    first = exit_.rank if exit_ else None
    if first is None:
        first = launchers.first_failed(launcher)
    trace = evidence.of_attempt(attempt, first, paths.code)
    got = progress.of(attempt)
    verdict = Verdict.read(attempt.verdict)
    reason, error = exit_reason.judge(
        exit_reason.Evidence(
            verdict=verdict,
            control=in_force(paths.trial(attempt.trial)),
            exit_code=exit_.code if exit_ else 127,
            died_of=exit_.died_of if exit_ else "",
            noticed=then.noticed,
            time_up=then.time_up,
            stands=then.stands,
            oom=then.oom,
            first_step=got.first_step,
            error=trace.error if trace else "",
            in_user_code=trace.in_user_code if trace else False,
            launcher=launcher,
            says=then.says,
            reclaims=then.reclaims,
            resized=then.resized,
        )
    )
    fit = matched_log_policies.fitting(policies, attempt)
    end = End(
        reason=reason,
        exit_code=exit_.code if exit_ else None,
        progressed=got.progressed,
        first_step=got.first_step,
        error=error,
        # of several, only the refused one is to be left out
        nodes=[verdict.node] if verdict and reason == "refused" else list(nodes),
        closed_by=closed_by,
        at=files.now(),
        policies=[policy.called for policy in fit],
        final=any(policy.action == "cancel_retries" for policy in fit),
        excludes=any(policy.action == "exclude_node" for policy in fit),
    )
    end.write_once(attempt.end)
    wakeup.tell(paths, attempt.trial, "attempt")
    return End.read(attempt.end) or end
