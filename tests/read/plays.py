"""Experiments to which one thing after the other happens, for tests of what reads them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from hpcdet.control.upkeep.packing import pack
from hpcdet.read.index import database
from hpcdet.store.folder.records import Command
from hpcdet.store.fs import journal
from hpcdet.store.trials.controls import in_force
from tests.builders import AttemptBuilder, Builder, TrialBuilder, put

WORDS = [
    *("update", "update", "trial", "attempt", "progress", "checkpoint", "sweep"),
    *("half", "folder", "end", "fail", "stop", "tag", "job", "close"),
    *("prune", "event", "term", "damage", "vanish", "move", "lose", "touch"),
    *("pack", "pack", "rewind"),
]
STEPS = st.lists(
    st.one_of(
        st.sampled_from(WORDS),
        st.tuples(
            st.sampled_from(["training", "validation"]),
            st.integers(0, 4),
            st.sampled_from(["loss", "validation_loss"]),
            st.one_of(st.floats(width=16), st.sampled_from(["Infinity", [1, 2]])),
            st.integers(0, 3),
        ),
    ),
    min_size=10,
    max_size=50,
)


class Play:
    """An experiment to which one thing after the other happens."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.built = Builder(root / "digits-7f3a")
        self.term = 0
        self.trials: list[TrialBuilder] = []
        self.attempts: list[AttemptBuilder] = []
        self.do("trial")
        self.do("attempt")

    def do(self, what: Any) -> None:
        built = self.built
        if isinstance(what, tuple):
            group, step, name, value, whose = what
            if self.attempts:
                self.attempts[whose % len(self.attempts)].metrics(group, step, **{name: value})
            return
        trial, attempt = (self.trials or [None])[-1], (self.attempts or [None])[-1]  # type: ignore[list-item]
        match what:
            case "update":
                database.update(built.paths)
            case "trial":
                self.trials.append(built.trial(hidden=len(self.trials)))
            case "attempt" if trial:
                if attempt and attempt.trial == trial.paths:  # none is claimed before it has ended
                    self._end(attempt, "lost")
                self.attempts.append(trial.attempt())
            case "folder" if trial:  # of the next attempt, which nobody has claimed yet
                number = max((one.number for one in trial.paths.attempts()), default=0) + 1
                trial.paths.attempt(number).root.mkdir(parents=True, exist_ok=True)
            case "progress" if attempt:
                attempt.line("progress", batches=len(self.attempts) * 50)
            case "checkpoint" if attempt:
                there = (path.name[:8] for path in attempt.trial.checkpoints.glob("[0-9]*"))
                attempt.checkpoint(100 + max(map(int, there), default=0))
            case "sweep" if trial:
                shutil.rmtree(trial.paths.checkpoints, ignore_errors=True)
            case "prune" if trial:
                for oldest in sorted(trial.paths.checkpoints.glob("[0-9]*"))[:1]:
                    shutil.rmtree(oldest)
            case "half" if attempt:  # which its writer takes back, or completes
                with attempt.paths.journal.open("ab") as file:
                    file.write(b'{"n":7,"t":"2026')
                database.update(built.paths)
                with attempt.paths.journal.open("ab") as file:
                    file.truncate(file.tell() - 16)
            case "end" if attempt:
                self._end(attempt, "preempted")
            case "fail" if attempt:
                self._end(attempt, "user_error", error="ValueError: no")
            case "rewind" if trial:
                control = in_force(trial.paths)
                before = control.rewinds if control else []
                newest = max((a.number for a in trial.paths.attempts()), default=0)
                name = f"{len(before):08d}.g{max(1, newest - len(before))}"
                trial.control("run", rewinds=[*before, [name, newest + 1]])
            case "stop" if trial:
                trial.control("stop", why="enough")
            case "tag":
                seq = len(list(built.paths.commands.glob("*"))) + 1
                put(built.paths.command(seq), Command("tag", 0, {"add": [f"t{seq}"]}))
            case "job":
                built.worker(built.job() % 3)
            case "close":
                built.close("CANCELED", "canceled by its user")
            case "event":
                self._decide("event", event={})
                self._decide("state", state="RUNNING", why=f"{self.term}", by="")
            case "term":  # which does not accept the last word of the former one
                self._decide("state", state="PAUSED", why="never accepted", by="x")
                lines = journal.read(built.paths.decisions(self.term))
                accepts = {"term": self.term, "n": len(lines) - 1}
                self.term += 1
                self._append("term", number=self.term, holder="x", accepts=accepts)
            case "damage" if attempt:
                with attempt.paths.journal.open("ab") as file:
                    file.write(b"{}\n")
            case "vanish" if len(self.trials) > 1:
                gone = self.trials.pop()
                shutil.rmtree(gone.paths.root)
                self.attempts = [a for a in self.attempts if a.trial != gone.paths]
            case "pack" if trial and pack(trial.paths, lambda: None) == "packed":
                self.attempts = [a for a in self.attempts if a.trial != trial.paths]
            case "move":  # the same bytes in other files
                shutil.copytree(built.paths.root, self.root / "copy")
                shutil.rmtree(built.paths.root)
                (self.root / "copy").rename(built.paths.root)
            case "lose":
                built.paths.index.unlink(missing_ok=True)
            case "touch" if attempt:  # another journal of the same length
                text = attempt.paths.journal.read_bytes()
                line = journal.encode(1, "start", {"world": 2, "checkpoint": "", "batches": 0}, "t")
                if text:
                    attempt.paths.journal.write_bytes(line)

    def _end(self, attempt: AttemptBuilder, reason: Any, **more: Any) -> None:
        if not attempt.paths.end.exists():  # it is written once
            attempt.end(reason, **more)

    def _decide(self, kind: str, **fields: Any) -> None:
        if not self.term:
            self.term = 1
            self._append("term", number=1, holder="x", accepts={"term": 0, "n": 0})
        self._append(kind, **fields)

    def _append(self, kind: str, **fields: Any) -> None:
        with journal.Writer(self.built.paths.decisions(self.term)) as writer:
            writer.append(kind, **fields)
