"""The last word of an attempt, where its session could not say it."""

from __future__ import annotations

import traceback
from typing import Literal

from hpcdet.errors import Unrecoverable
from hpcdet.policy.codes import NODE_REFUSED, GovernanceBroken, PolicyRefused
from hpcdet.process import deterministic
from hpcdet.process.console import say, say_error
from hpcdet.process.location import AttemptLocation, named
from hpcdet.process.ranks import PEER_LOST, Ranks, node_name
from hpcdet.store.folder.records import Verdict
from hpcdet.store.fs import files
from hpcdet.train.comm.collectives import is_peer_loss
from hpcdet.train.meeting import rendezvous
from hpcdet.train.meeting.gloo import Unproven

_NO_FACE = "hpcdet's face of it is left out by compat.determined: off"


class InvalidHP(Exception):
    """These hyperparameters cannot work: end this trial and do not try it again."""


def verdict_on(error: BaseException, checkpoint: str) -> Verdict:
    """Return the session's verdict on an error that ends it.

    Args:
        checkpoint: the name of the newest one.
    """
    if isinstance(error, Unproven):
        return Verdict(
            "resume", "unproven", checkpoint=checkpoint, error=last_line(error), at=files.now()
        )
    if _is_refused(error):
        return _refused(error, checkpoint)
    unrecoverable = isinstance(error, Unrecoverable) or of_governance(error)
    return Verdict(
        "norestart" if unrecoverable or isinstance(error, InvalidHP) else "fail",
        "error",
        checkpoint=checkpoint,
        error=_said(error),
        unrecoverable=unrecoverable,
        at=files.now(),
    )


def unsaid_failure(place: AttemptLocation, error: BaseException) -> int:
    """An error outside any session, while importing the user's code for example: give the verdict.

    Returns the exit code for this process.
    """
    if isinstance(error, SystemExit) and place.attempt.verdict.exists():
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, SystemExit) and error.code == PEER_LOST:
        return PEER_LOST
    if is_peer_loss(error):
        return peers_lost(error)
    error = clearer(error)
    say_error(error, own_frames=not of_governance(error))
    final = of_governance(error)
    kind: Literal["norestart", "fail"] = "norestart" if final else "fail"
    said = Verdict(kind, "error", error=_said(error), unrecoverable=final, at=files.now())
    (_refused(error) if _is_refused(error) else said).write_once(place.attempt.verdict)
    return 1


def of_governance(error: BaseException) -> bool:
    """True if a policy refuses this, or governed state is broken: the next attempt ends alike."""
    return isinstance(error, PolicyRefused | GovernanceBroken)


def _said(error: BaseException) -> str:
    """The text for people of an error that ends a trial, with governance's repair."""
    return named(str(error)) if of_governance(error) else last_line(error)


def _is_refused(error: BaseException) -> bool:
    """True if this node does not attest what the policy requires: another one may."""
    return isinstance(error, GovernanceBroken) and error.check == NODE_REFUSED


def _refused(error: BaseException, checkpoint: str = "") -> Verdict:

    return Verdict(
        "resume",
        "refused",
        checkpoint=checkpoint,
        error=str(error),
        node=node_name(),
        at=files.now(),
    )


def clearer(error: BaseException) -> BaseException:
    """An error of torch's in words that say what to do, where there are some; else itself."""
    refusal = deterministic.refusal(error) or rendezvous.refusal(error)
    if refusal is None:
        return error
    # with frames of its own: whoever reads the log takes the last traceback
    refusal.__cause__ = error
    return refusal.with_traceback(error.__traceback__)


def peers_lost(error: BaseException) -> int:
    """Say what made this rank believe so: it may be a network that never worked.

    Returns the exit code for this process.
    """
    say(f"other ranks of this trial are gone: {last_line(error)}")
    return PEER_LOST


def unsaid_end(place: AttemptLocation) -> int:
    """The code ended well and never began a session: there is nothing more to do."""
    if not place.attempt.verdict.exists() and Ranks.from_environment().chief:
        Verdict("done", "completed", at=files.now()).write_once(place.attempt.verdict)
    return 0


def last_line(error: BaseException) -> str:
    """The error's own line in a traceback: what people look for first."""
    line = named(traceback.format_exception_only(error)[-1].strip().split("\n", 1)[0])
    return f"{line} ({_NO_FACE})" if line.endswith("No module named 'determined'") else line
