"""The reason why an attempt ended, a pure function of the evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass
from signal import Signals

from hpcdet.launchers import opening as launchers
from hpcdet.store.folder.records import Control, Reason, Verdict
from hpcdet.worker.attempts.step import PEER_LOST

Says = tuple[tuple[str, Reason], ...]
"""Patterns of what a scheduler says on a launcher's standard error, and what each means."""

# What a rank says when another one is gone: never the cause, only its echo.
_ECHO = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|gloo|DistBackendError|DistNetworkError"
    r"|DistStoreError|NCCL|MPI \w+ failed: ",
)
# What PyTorch says in a rank one of whose loader processes was killed from outside.
_LOADER_KILLED = re.compile(
    r"DataLoader worker .*killed by signal: (Killed|Terminated|User defined signal 2)"
)
_DIED_OF = {128 + n: n.name for n in (Signals.SIGKILL, Signals.SIGTERM, Signals.SIGUSR2)}
_RULE = re.compile(r"(?m)^-{5,}\s*$")


@dataclass(frozen=True)
class Evidence:
    """The facts known about an attempt whose processes have ended.

    Attributes:
        control: the control in force.
        exit_code: of the step, a hint only.
        died_of: signal that ended the rank that failed first.
        noticed: the allocation was told to end.
        time_up: the allocation's end is so near that this was why.
        stands: the scheduler says the allocation runs on.
        oom: the kernel killed something for memory meanwhile.
        first_step: the attempt reached its first step.
        error: last line of the traceback of the rank that failed first, "" if it has none.
        in_user_code: that traceback passes through the user's code.
        launcher: what the launcher said.
        says: what of that are words of the scheduler.
        reclaims: nodes may be taken away here at any time: one that is lost was.
        resized: its worker asked it to leave for more nodes.
    """

    verdict: Verdict | None
    control: Control | None
    exit_code: int
    died_of: str = ""
    noticed: bool = False
    time_up: bool = False
    stands: bool = True
    oom: bool = False
    first_step: bool = False
    error: str = ""
    in_user_code: bool = False
    launcher: str = ""
    says: Says = ()
    reclaims: bool = False
    resized: bool = False


def judge(seen: Evidence) -> tuple[Reason, str]:
    """Return the reason an attempt ended and, for a failure, a line for the user.

    The verdict file takes precedence. Without one, or if it says ``fail``, the cause that killed
    a rank counts more than the errors that the other ranks reported.
    """
    verdict = seen.verdict
    if is_unwanted(seen.control) and (verdict is None or verdict.cause == "error"):
        return "canceled", ""
    if verdict is not None and verdict.cause != "error":
        return _by_cause(verdict, seen), verdict.error
    if verdict is not None and verdict.verdict == "norestart":
        return "user_error", verdict.error
    return _killed(seen) or _failed(seen)


def is_unwanted(control: Control | None) -> bool:
    """True if a trial is to end at once, without saving."""
    return control is not None and control.action == "kill" and control.now


def _by_cause(verdict: Verdict, seen: Evidence) -> Reason:
    killed = seen.control is not None and seen.control.action == "kill"
    if verdict.cause == "completed":
        return "completed"
    if verdict.cause in ("paused", "unproven", "refused"):
        return verdict.cause
    if verdict.cause == "stopped" or killed:
        return "canceled" if killed else "stopped"
    return "walltime" if verdict.cause == "walltime" else _told(seen)


def _told(seen: Evidence) -> Reason:
    """Return why the attempt was asked to leave, or its allocation was taken away."""
    if seen.time_up:
        return "walltime"
    return "resized" if seen.resized and not seen.noticed else "preempted"


def _killed(seen: Evidence) -> tuple[Reason, str] | None:
    """Return the reason of an end that positive evidence shows is not the user code's fault."""
    told = _told(seen)
    lost: Reason = "preempted" if seen.reclaims else "node_fail"
    for pattern, reason in seen.says:
        if re.search(pattern, seen.launcher):
            reason = lost if reason == "node_fail" else reason
            return reason, _last_line(seen.launcher) if reason == "oom" else ""
    died_of = _died_of(seen) or _loader_killed(seen)
    if not died_of and not seen.error and seen.verdict is None:
        died_of = _DIED_OF.get(seen.exit_code, "")  # a launcher that was killed says nothing
    if died_of == "SIGKILL":
        if seen.oom:
            return "oom", "killed by the kernel: out of memory"
        if seen.noticed or not seen.stands:
            return told, ""
        reported = launchers.death(seen.launcher)
        if _own_words(seen) and not seen.died_of and reported and not reported.first:
            # the launcher kills the others of a rank that has failed, and does not say whom first
            return None
        return "lost", "a rank was killed"
    if died_of in ("SIGTERM", "SIGUSR2"):
        return told, ""
    if launchers.lost_node(seen.launcher) and not seen.error:
        return lost, "the launcher lost a node"
    if not seen.stands:
        return told, ""
    if (seen.noticed or seen.resized) and seen.verdict is None and not seen.error:
        return told, ""
    return None


def _failed(seen: Evidence) -> tuple[Reason, str]:
    said = seen.verdict.error if seen.verdict is not None else ""
    error = _own_words(seen)
    ours = seen.first_step or seen.in_user_code or (seen.verdict is not None and said == error)
    if error and ours:
        return "user_error", error
    if not seen.first_step:
        return "launch_failed", error or seen.error or said or _last_line(seen.launcher)
    if died_of := _died_of(seen):
        return "user_error", f"a rank died of {died_of}"
    if seen.error or said or seen.exit_code in (0, PEER_LOST):
        # only echoes of a loss that no rank reported, or an end without a message
        return "lost", seen.error or said
    return "user_error", f"exit code {seen.exit_code}"


def _own_words(seen: Evidence) -> str:
    """Return the error that a rank itself caused; "" if all errors only echo another rank's."""
    said = seen.verdict.error if seen.verdict is not None else ""
    return next((each for each in (seen.error, said) if each and not _ECHO.search(each)), "")


def _died_of(seen: Evidence) -> str:
    """Return the signal that ended the rank that failed first; "" if none did."""
    if seen.died_of:
        return seen.died_of
    reported = launchers.death(seen.launcher)
    return reported.signal if reported else ""


def _loader_killed(seen: Evidence) -> str:
    said = seen.verdict.error if seen.verdict is not None else ""
    found = _LOADER_KILLED.search(f"{seen.error}\n{said}")
    return ("SIGKILL" if found[1] == "Killed" else "SIGTERM") if found else ""


def _last_line(text: str) -> str:
    """Return the last line or, of an Open MPI message between two rules, its first line."""
    said = [part.strip() for part in _RULE.split(text) if part.strip()]
    if not said:
        return "the ranks ended without a word before their first step"
    return said[-1].splitlines()[0 if text.rstrip().endswith("----") else -1]
