"""``make governed-recovery``: recovery verifies provenance integrity.

Trials are killed between a checkpoint and later steps, on 1, 2 and 4 ranks, and end with the
exposure and the bits of one that nobody disturbed; the ledger says what was lost. Then each check
of a resume meets the change that it is for: its code and its default outcome are wanted. Each row
is a claim with what was wanted and what was seen; exit code 0 only if all are as wanted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import numpy as np  # noqa: E402
from claims import Claimed, conclude  # noqa: E402

from benchmarks.governed import forging, tampers  # noqa: E402
from benchmarks.governed.tampers import KEY  # noqa: E402
from hpcdet.policy import dsse, statements  # noqa: E402
from hpcdet.policy.codes import RESUME_CODES  # noqa: E402
from hpcdet.policy.compiled import (  # noqa: E402
    CompiledPolicy,
    Entropy,
    LayerGroup,
    Requires,
    TrustedKey,
)
from hpcdet.policy.keys import key_files  # noqa: E402
from hpcdet.policy.ledger import records  # noqa: E402
from hpcdet.policy.ledger.verify import verify  # noqa: E402
from hpcdet.policy.statements import NodeStatement  # noqa: E402
from hpcdet.process import ranks as process_ranks  # noqa: E402
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths  # noqa: E402
from tests import ranks, sources  # noqa: E402
from tests.ranks import Attempt  # noqa: E402

UNTIL, SAVED, KILLED, LEFT = 12, 8, 11, 9
WORLDS = (1, 2, 4)
EXACT = {"reproducibility": {"elastic": "exact", "virtual_ranks": 4}}
BAND = 0.05
"""By which a layer's spectral entropy may miss that of the reference."""
ENDS = {
    ("norestart", "error"): "stopped",
    ("resume", "refused"): "refused by the node",
}
"""What is said of verdicts that end an attempt."""
SILENT = ["G113", "G121", "G123"]
"""Checks that are made, and that no journal names unless they fail."""
CAPABILITY = "enclave_phi"
LAYERS = (
    LayerGroup("low", r"^[01]\.", (0.0, 0.4)),
    LayerGroup("high", r"^4\.", (0.4, 0.8)),
    LayerGroup("head", r"^6\.", (0.8, 1.0)),
)
MATRIX = ((0.0, 1.0, 1.0), (0.0, 1.0, 1.0), (0.0, 0.0, 0.5))
LOADS = """
class Loads(pytorch.PyTorchCallback):
    def on_checkpoint_load_start(self, state):
        pass
        # on load


"""


class Trials:
    """A folder for trials under the policies of the campaign."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.statement = folder / "node.dsse"
        self._key = folder / "run.key"
        self._key.write_text(KEY.private_bytes_raw().hex())
        self._key.chmod(0o600)
        self.attest()
        self._model = folder / "model"
        self._model.mkdir()
        text = (TOP / "tests" / "governed_model.py").read_text()
        text = text.replace("class Governed(", f"{LOADS}class Governed(").replace(
            "    def losses(self, batch):",
            "    def build_callbacks(self):\n        return {'loads': Loads()}\n\n"
            "    def losses(self, batch):",
        )
        files = {"x.csv": b"1,2\n3,4\n", "y.csv": b"5,6\n"}
        self._sources = tuple(sources.provided(self._model, name, files) for name in "abc")
        (self._model / "model_def.py").write_text(text)

    def attest(self) -> None:
        """Make the statement of this machine, and beside it one of another."""
        now = time.time()
        times = [datetime.fromtimestamp(now + s, UTC).isoformat() for s in (0, 3600)]
        boot = statements.BOOT_ID.read_text().strip()
        for path, node in (
            (self.statement, process_ranks.node_name({})),
            (self.statement.with_name("other"), "elsewhere"),
        ):
            said = NodeStatement(node, boot, (CAPABILITY,), *times)
            payload = statements.payload(said)
            envelope = dsse.sign(statements.PAYLOAD_TYPE, payload, KEY)
            path.write_text(json.dumps(envelope))
            path.chmod(0o644)

    def policy(self, **changes: Any) -> CompiledPolicy:
        """The policy: nothing may change the first layer, and c not the second."""
        public = key_files.public(KEY)
        made = CompiledPolicy(
            name="recovery",
            version=1,
            text_digest="sha256:00",
            layers=LAYERS,
            sources=self._sources,
            matrix=MATRIX,
            trust=(sources.STEWARD, *(TrustedKey(r, r, public) for r in ("run", "site"))),
            requires=Requires((CAPABILITY,), "signed"),
        )
        return dataclasses.replace(made, **changes)

    def expecting(self, reference: TrialPaths) -> CompiledPolicy:
        """The same, with the spectral entropies that another trial has come to as its bands."""
        found = forging.newest(reference).manifest.meta["governance"]["spectral"]["layers"]
        bands = {name: (value, 0.0) for name, value in found.items()}
        return self.policy(entropy=Entropy(reference=bands, floor=BAND))

    def make(self, name: str, world: int, policy: CompiledPolicy, **changes: Any) -> TrialPaths:
        """Make an experiment with one trial."""
        paths = ExperimentPaths(self.folder / name / "EXP")
        paths.root.mkdir(parents=True)
        paths.compiled_policy.write_text(policy.to_json())
        site = {"statement": {"path": str(self.statement), "key": key_files.public(KEY)}}
        paths.site.write_text(json.dumps({"governance": site}))
        governance = {"policy": "recovery", "digest": policy.digest}
        return ranks.experiment(
            paths.root,
            code=self._model,
            ranks=world,
            hparams={"global_batch_size": 12, "drop": 0.3, "optimizer": "Adam"},
            **{
                "entrypoint": "model_def:Governed",
                "until": UNTIL,
                "min_validation_period": {"batches": 4},
                "checkpoint_policy": "all",
                "governance": {**governance, "run_key": {"file": str(self._key)}},
                **changes,
            },
        )

    def kill(self, trial: TrialPaths, world: int) -> None:
        """Kill all ranks of an attempt, steps behind a checkpoint."""
        gates = trial.root.parent.parent.with_name("gates")
        gates.mkdir()
        environment = {"GATE": f"train:{KILLED}", "GATES": str(gates)}
        with ranks.start(trial, world, **environment) as attempt:
            manifest = trial.checkpoint(SAVED, 1) / "MANIFEST.json"
            attempt.wait_for(lambda: len(list(gates.glob("reached-*"))) == world)
            attempt.wait_for(manifest.exists)
            attempt.kill()

    def copy(self, trial: TrialPaths, name: str) -> TrialPaths:
        """A copy of an experiment, to be tampered with."""
        there = self.folder / name / "EXP"
        shutil.copytree(trial.root.parent.parent, there, symlinks=True)
        return ExperimentPaths(there).trial(1)


def ended(trial: TrialPaths) -> tuple[str, Any]:
    """The content digest of the last checkpoint, and the exposure in it."""
    loaded = forging.newest(trial)
    return loaded.manifest.digest, np.asarray(loaded.shared["governance"]["E"]).tolist()


def calm_trial(trials: Trials) -> TrialPaths:
    """A trial that nobody disturbs."""
    calm = trials.make("calm", 1, trials.policy(), **EXACT)
    completed(ranks.run(calm, 1))
    return calm


def completed(attempt: Attempt) -> None:
    """Raise AssertionError if an attempt has not trained to the end."""
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()


def recovery(trials: Trials, calm: TrialPaths, worlds: Sequence[int]) -> Iterator[Claimed]:
    """Kill trials on some ranks, and compare them with the one that nobody disturbed."""
    digest, exposure = ended(calm)
    for world in worlds:
        trial = trials.make(f"killed-{world}", world, trials.policy(), **EXACT)
        trials.kill(trial, world)
        completed(ranks.run(trial, world))
        seen = ended(trial)
        ledgers = [records.read(one.number, one.ledger) for one in trial.attempts()]
        found = verify([one for one in ledgers if one is not None], [key_files.public(KEY)])
        told = f"{world} ranks, SIGKILL behind step {SAVED}"
        yield Claimed(f"{told}: content digest", digest, seen[0])
        yield Claimed(f"{told}: exposure", exposure, seen[1])
        bad = "sound" if found.bad is None else found.bad.code
        yield Claimed(f"{told}: ledger", ["sound", "trusted"], [bad, found.signed])
        yield Claimed(f"{told}: attempt lost, back to step", [[1, SAVED]], _rolled_back(trial))


def _rolled_back(trial: TrialPaths) -> list[list[int]]:
    """The attempts whose records the second one's ledger says are lost, and behind which step."""
    ledger = records.read(2, trial.attempt(2).ledger)
    assert ledger is not None
    found = [one for one in ledger.records if one.type == "rollback"]
    return [[attempt, one.step] for one in found for attempt, _, _ in one.body["lost"]]


def raised(attempt: Attempt) -> list[str]:
    """Codes with their outcomes that a resume has come to, but for checks that have passed."""
    verdict = attempt.verdict()
    lines = attempt.lines()
    checks = next((line["checks"] for line in lines if "checks" in line), [])
    found = {
        f"{one['code']} {one['outcome']}"
        for one in checks
        if one["outcome"] not in ("passed", "unknown")
    }
    if verdict is None:
        return sorted({*found, "no verdict"})
    if verdict.verdict != "done":
        outcome = ENDS.get((verdict.verdict, verdict.cause), f"{verdict.verdict}, {verdict.cause}")
        named = set(re.findall(r"\bG1\d\d\b", verdict.error))
        found |= {f"{code} {outcome}" for code in named or {"no code"}}
    elif "G103 recorded" in found and _origin(attempt) == SAVED:
        found = found - {"G103 recorded"} | {"G103 older checkpoint"}
    return sorted(found)


def _origin(attempt: Attempt) -> int:
    """The step of the checkpoint that an attempt has gone on from; 0: of none."""
    ledger = records.read(attempt.paths.number, attempt.paths.ledger)
    assert ledger is not None
    return int(ledger.records[0].step)


def checks(trials: Trials, calm: TrialPaths, numbers: Sequence[int]) -> Iterator[Claimed]:
    """Let each check meet what it is for, and all of them one trial that nobody touched."""
    policy = trials.expecting(calm)
    bases = {"plain": trials.make("plain", 1, policy), "ranks": trials.make("ranks", 2, policy)}
    worlds = {"plain": 1, "ranks": 2, "killed": 1}
    for name, trial in bases.items():
        left = ranks.run(trial, worlds[name], LEAVE=f"train:{LEFT}").verdict()
        assert left is not None and left.verdict == "resume", left
        copy = trials.copy(trial, f"control-{name}")
        attempt = ranks.run(copy, worlds[name])
        completed(attempt)
        told = f"   untouched control, {worlds[name]} ranks"
        yield Claimed(f"{told}: raised", [], raised(attempt))
        yield Claimed(f"{told}: not said to have passed", SILENT, _unsaid(attempt))
    bases["killed"] = trials.make("killed", 1, policy)
    trials.kill(bases["killed"], 1)
    for one in tampers.tampers(trials.statement):
        if one.number in numbers:
            trial = trials.copy(bases[one.base], f"check-{one.number}")
            one.act(trial)
            attempt = ranks.run(trial, worlds[one.base])
            trials.attest()
            wanted = sorted([f"{one.code} {one.wanted}", *one.follows])
            found = Claimed(f"{one.number:>2} {one.what}", wanted, raised(attempt))
            yield found
            if not found.met:
                print(attempt.log()[-1500:])


def _unsaid(attempt: Attempt) -> list[str]:
    found = next((line["checks"] for line in attempt.lines() if "checks" in line), [])
    passed = {one["code"] for one in found if one["outcome"] == "passed"}
    return [code for code in RESUME_CODES if code not in passed]


def told(found: Iterable[Claimed]) -> list[Claimed]:
    """Print a line of the table for each claim as soon as it is there."""
    made = []
    for one in found:
        wanted, seen = (_short(value) for value in (one.wanted, one.seen))
        mark = "yes" if one.met else "NO"
        print(f"{one.what:<52.52}  {wanted:<36.36}  {seen:<36.36}  {mark}", flush=True)
        made.append(one)
    return made


def _short(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all of it; 0 only if all is as wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", nargs="*", type=int, help="of 1, 2, 4, some")
    parser.add_argument("--checks", nargs="*", type=int, help="of 1 to 23, some")
    asked = parser.parse_args(arguments)
    worlds = list(WORLDS) if asked.ranks is None else asked.ranks
    numbers = list(range(1, 24)) if asked.checks is None else asked.checks
    begin = time.monotonic()
    print(f"{'what':<52}  {'wanted':<36}  {'seen':<36}  met")
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(Path(folder))
        calm = calm_trial(trials)
        found = told(recovery(trials, calm, worlds)) + told(checks(trials, calm, numbers))
    print(f"{time.monotonic() - begin:.0f} s")
    whole = asked.ranks is None and asked.checks is None
    return conclude("governed-recovery", found, whole=whole)


if __name__ == "__main__":
    sys.exit(main())
