"""All paths inside an experiment's folder, with one class per level.

Paths are built, never searched for by pattern elsewhere; all stored references are relative
to the folder, so that it can be moved.

Where the site has project storage, an experiment lies there and has a second folder on scratch,
for what may be purged: logs, and checkpoints to go on from. One link, ``EXP/scratch``, leads
there; everything in that folder has its path through the link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.names import CONFIG, POLICY, REHEARSAL
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import packed

_REOPENED = re.compile(r"reopened-\d+\.json")
CHECKPOINT_NAME = re.compile(r"(\d{8,})\.g(\d+)")
INHERITED = 0
"""In the name of a checkpoint, instead of an attempt: it is another trial's, to begin from."""


@dataclass(frozen=True)
class TrialPaths:
    """``trials/0007``: one training run with fixed hyperparameters and seed.

    Attributes:
        scratch: its folder on scratch, where the experiment has a part there.
    """

    root: Path
    number: int
    scratch: Path | None = None

    @property
    def record(self) -> Path:
        """Hyperparameters, seed, parent (``records.Trial``); write-once."""
        return self.root / "trial.json"

    @property
    def controls(self) -> Path:
        return self.root / "control"

    def control(self, seq: int) -> Path:
        """The controls of the trial (``records.Control``), numbered from 1."""
        return self.controls / f"{seq:04d}.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of saved checkpoints; on scratch, if the experiment has a part there."""
        return (self.scratch or self.root) / "checkpoints"

    @property
    def kept(self) -> Path | None:
        """The folder to which checkpoints to keep are copied, if they are saved elsewhere."""
        return self.root / "checkpoints" if self.scratch else None

    @property
    def checkpoint_places(self) -> tuple[Path, ...]:
        """Every folder that may hold checkpoints, the one where they are saved first."""
        return (self.checkpoints, self.kept) if self.kept else (self.checkpoints,)

    @property
    def pins(self) -> Path:
        """The pinned checkpoints, kept regardless of retention (``store.trials.pins``)."""
        return self.root / "pinned"

    def checkpoint(self, step: int, attempt: int) -> Path:
        """The folder of a checkpoint; its name is never used twice."""
        return self.checkpoints / f"{step:08d}.g{attempt}"

    def attempt(self, number: int) -> AttemptPaths:
        below = f"attempts/{number}"
        scratch = self.scratch / below if self.scratch else None
        return AttemptPaths(self.root / below, self.number, number, scratch)

    def numbers(self) -> list[int]:
        """The numbers of the attempts that were claimed or begun, ascending."""
        return packed.numbers(self.root / "attempts")

    def attempts(self) -> list[AttemptPaths]:
        """The attempts that were claimed or begun, ascending."""
        return [self.attempt(n) for n in self.numbers()]


@dataclass(frozen=True)
class ExperimentPaths:
    """The experiment's folder; its name is the experiment's id.

    Attributes:
        name: the folder's name where ``root`` does not end with it (``store.folder.held_folder``).
    """

    root: Path
    name: str = ""

    @property
    def id(self) -> str:
        return self.name or self.root.name

    @property
    def rehearsal(self) -> bool:
        """True for the private copy that ``hpcdet test`` tries."""
        return self.root.parent.name.startswith(REHEARSAL)

    @property
    def config(self) -> Path:
        return self.root / CONFIG

    @property
    def site(self) -> Path:
        return self.root / "site.yaml"

    @property
    def policy(self) -> Path:
        """The text of the policy, if there is one; write-once."""
        return self.root / POLICY

    @property
    def policy_changes(self) -> Path:
        """The folder of changes of the policy, numbered from 1: ``policies/0001.json``."""
        return self.root / "policies"

    @property
    def certificates(self) -> Path:
        """The folder of certificates of the run key, from 1 (``policy.keys.run_keys``)."""
        return self.root / "certificates"

    @property
    def compiled_policy(self) -> Path:
        """The policy as it is enforced (``policy.compiled``); write-once."""
        return self.root / "policy.json"

    @property
    def revealed(self) -> Path:
        """Written once the twin key was shown (``records.Revealed``)."""
        return self.root / "revealed.json"

    @property
    def secrets(self) -> Path:
        """Literal ``data.secrets``, mode 0600, in no other file."""
        return self.root / "secrets.json"

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def provenance(self) -> Path:
        return self.root / "provenance.json"

    @property
    def fingerprints(self) -> Path:
        """The folder of the environments that attempts ran in (``train.attempt.fingerprint``)."""
        return self.root / "fingerprints"

    def fingerprint(self, digest: str) -> Path:
        """One of them, whole and write-once; journals of attempts name its digest."""
        return self.fingerprints / f"{digest}.json"

    @property
    def data(self) -> Path:
        """The folder of manifests of the files of ``data.paths``, numbered from 1."""
        return self.root / "data"

    def data_manifest(self, number: int) -> Path:
        """The manifest of one of ``data.paths`` (``policy.provenance.source_manifests``)."""
        return self.data / f"{number:04d}.manifest.json"

    @property
    def history(self) -> Path:
        """The history of former experiments, for a warm start (``store.trials.history``)."""
        return self.root / "history.json"

    @property
    def origin(self) -> ExperimentPaths:
        """The folder whose trial 1 has the checkpoint that all trials begin from, if any."""
        return ExperimentPaths(self.root / "origin")

    @property
    def terms(self) -> Path:
        """The terms of the lease, numbered: ``terms/000003.json`` and its beat."""
        return self.root / "terms"

    def term(self, number: int) -> Path:
        return self.terms / f"{number:06d}.json"

    def decisions(self, term: int) -> Path:
        """The journal of all that the holder of one term learned and decided."""
        return self.root / "decisions" / f"{term:06d}.jsonl"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def homes(self) -> Path:
        """The homes of the experiment (``store.folder.home``), numbered from 1."""
        return self.root / "homes"

    def home(self, number: int) -> Path:
        return self.homes / f"{number:04d}.json"

    def snapshot(self, term: int, n: int) -> Path:
        """The decided state at a record of a term (``store.decisions.snapshots``); removable."""
        return self.snapshots / f"{term:06d}-{n:08d}.json"

    @property
    def commands(self) -> Path:
        return self.root / "commands"

    def command(self, seq: int) -> Path:
        """A user's command (``records.Command``), numbered from 1."""
        return self.commands / f"{seq:04d}.json"

    def limits(self, seq: int) -> Path:
        """Limits set by users (``cost_records.RunLimits``), from 1; the newest is in force."""
        return self.root / "limits" / f"{seq:04d}.json"

    def reservation(self, number: int) -> Path:
        """A reservation of a claim (``cost_records.Reservation``), from 1 without gaps."""
        return self.root / "reservations" / f"{number:06d}.json"

    @property
    def nudges(self) -> Path:
        """The workers' nudges to the holder of the lease (``store.decisions.wakeup``)."""
        return self.root / "nudges"

    @property
    def messages(self) -> Path:
        """Messages to people, and how far each is sent (``store.decisions.outbox``)."""
        return self.root / "messages"

    def charges(self, number: int) -> Path:
        """The charges of the scheduler's accounting (``cost_records.Charges``), numbered from 1."""
        return self.root / "charges" / f"{number:04d}.json"

    def intent(self, submission: int) -> Path:
        """The intent of a submission (``records.Intent``), written before the job is submitted."""
        return self.root / "jobs" / f"{submission:04d}.json"

    def submitted(self, submission: int) -> Path:
        """The scheduler's job id (``records.Submitted``), written after the submission."""
        return self.root / "jobs" / f"{submission:04d}.submitted.json"

    def script(self, submission: int) -> Path:
        return self.root / "scripts" / f"{submission:04d}.sh"

    def sentinel(self, submission: int) -> Path:
        """The job that runs once all tasks of a submission have ended (``records.Intent``)."""
        return self.root / "jobs" / f"{submission:04d}.sentinel.json"

    def sentinel_submitted(self, submission: int) -> Path:
        return self.root / "jobs" / f"{submission:04d}.sentinel.submitted.json"

    def sentinel_script(self, submission: int) -> Path:
        return self.root / "scripts" / f"{submission:04d}.sentinel.sh"

    def stuck(self, submission: int) -> Path:
        """The record of a sentinel that found trials waiting and no worker (``records.Stuck``)."""
        return self.root / "jobs" / f"{submission:04d}.stuck.json"

    def job_log(self, submission: int) -> Path:
        """The folder, free of patterns, where the scheduler puts the batch scripts' output."""
        return self.root / "jobs" / f"{submission:04d}.logs"

    @property
    def closed(self) -> Path:
        """The end of the experiment (``records.Closed``); it is over once this file exists.

        After each reopening by a user this is another file, which does not exist yet.
        """
        first = self.root / "closed.json"
        times = self.times_reopened if first.exists() else 0
        return self.root / f"closed-{times + 1}.json" if times else first

    @property
    def reopening(self) -> Path:
        """The record of the next reopening (``records.Reopened``), not made yet."""
        return self.reopened(self.times_reopened + 1)

    def reopened(self, time: int) -> Path:
        return self.root / f"reopened-{time}.json"

    @property
    def times_reopened(self) -> int:
        # listing the folder refreshes what a network file system has cached of it
        return sum(_REOPENED.fullmatch(name) is not None for name in os.listdir(self.root))

    @property
    def best(self) -> Path:
        """The best validation so far (``records.Best``); derived, replaced by the holder."""
        return self.root / "best.json"

    @property
    def searcher_log(self) -> Path:
        return self.root / "searcher.log"

    def daemon(self, host: str) -> Path:
        """The daemon of a host, deciding or waiting (``control.leader.daemon_registry``)."""
        return self.root / "searcher" / f"daemon-{host}.json"

    @property
    def scratch(self) -> Path:
        """The link to the folder on scratch; absent if all of the experiment is in one place.

        In an experiment that was packed into an archive and unpacked it is a plain folder.
        """
        return self.root / "scratch"

    @property
    def split(self) -> bool:
        """True if the experiment has a part on scratch, even when that part is gone."""
        return os.path.lexists(self.scratch)

    @property
    def stored(self) -> Path:
        """The records of copies in an object store (``store.objects.copy_records``)."""
        return self.root / "stored"

    @property
    def index(self) -> Path:
        return self.root / "index.sqlite"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def row(self) -> Path:
        """The row of an ended experiment in lists (``read.left_row``); derived."""
        return self.root / "derived" / "row.json"

    def trial(self, number: int) -> TrialPaths:
        return self._trial(number, self.split)

    def _trial(self, number: int, split: bool) -> TrialPaths:
        below = f"trials/{number:04d}"
        return TrialPaths(self.root / below, number, self.scratch / below if split else None)

    def trials(self) -> list[TrialPaths]:
        split = self.split
        return [self._trial(n, split) for n in packed.numbers(self.root / "trials")]

    def submissions(self) -> list[int]:
        return packed.numbers(self.root / "jobs", ".json")

    def worker(self, submission: int, index: int, incarnation: int) -> WorkerPaths:
        root = self.root / "workers" / f"{submission:04d}-{index:04d}.{incarnation}"
        return WorkerPaths(root, submission, index, incarnation)

    def worker_names(self) -> frozenset[str]:
        """Return the names of what is in the workers' folder, packed or not."""
        return frozenset(packed.names(self.root / "workers"))

    def workers(
        self, known: dict[str, WorkerPaths] | None = None, names: Set[str] | None = None
    ) -> Iterator[WorkerPaths]:
        """Yield every worker that ever claimed its place, in order of name, packed or not.

        Args:
            known: by name, those of former calls; new ones are added.
            names: as ``worker_names`` returned them, to spare a listing.
        """
        for name in sorted(self.worker_names() if names is None else names):
            if known is not None and name in known:
                yield known[name]
                continue
            match = re.fullmatch(r"(\d+)-(\d+)\.(\d+)", name)
            if match:
                worker = self.worker(*(int(group) for group in match.groups()))
                if known is not None:
                    known[name] = worker
                yield worker
