"""``make governed-recovery``: recovery verifies provenance integrity.

Trials are killed between a checkpoint and later steps, on 1, 2 and 4 ranks, and end with the
exposure and the bits of one that nobody disturbed; the ledger says what was lost. Then each check
of a resume meets the change that it is for: its code and its default outcome are wanted. Each row
is a claim with what was wanted and what was seen; exit code 0 only if all are as wanted.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import numpy as np  # noqa: E402
import results  # noqa: E402

from benchmarks.governed import forging, tampers  # noqa: E402
from benchmarks.governed.tampers import KEY, Tamper  # noqa: E402
from hpcdet.policy import dsse, statements  # noqa: E402
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
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths  # noqa: E402
from tests import ranks, sources  # noqa: E402
from tests.ranks import Attempt  # noqa: E402

UNTIL, SAVED, KILLED = 12, 8, 11
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
            (self.statement, statements.node_name({})),
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

    def unplanned(self) -> CompiledPolicy:
        """The same, with an expectation that the trial does not meet."""
        plan = tuple(
            dataclasses.replace(one, share=share)
            for one, share in zip(self._sources, (98.0, 1.0, 1.0), strict=True)
        )
        return self.policy(sources=plan, entropy=Entropy(reference={"high": (0.2, 0.0)}))

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


def claim(what: str, wanted: Any, seen: Any) -> results.Row:
    """A row: what was wanted and what was seen."""
    row = {"what": what, "wanted": wanted, "seen": seen, "met": wanted == seen}
    mark = "yes" if row["met"] else "NO"
    print(f"{what:<58.58}  {wanted!s:<28.28}  {seen!s:<44.44}  {mark}", flush=True)
    return row


def ended(trial: TrialPaths) -> tuple[str, Any]:
    """The content digest of the last checkpoint, and the exposure in it."""
    loaded = forging.newest(trial)
    return loaded.manifest.digest, np.asarray(loaded.shared["governance"]["E"]).tolist()


def recovery(trials: Trials) -> list[results.Row]:
    """Kill trials on some ranks, and compare them with one that nobody disturbed."""
    exact = {"reproducibility": {"elastic": "exact", "virtual_ranks": 4}}
    calm = trials.make("calm", 1, trials.policy(), **exact)
    last = ranks.run(calm, 1)
    assert last.verdict() is not None, last.log()
    wanted = ended(calm)
    rows = []
    for world in (1, 2, 4):
        trial = trials.make(f"killed-{world}", world, trials.policy(), **exact)
        trials.kill(trial, world)
        attempt = ranks.run(trial, world)
        assert attempt.verdict() is not None, attempt.log()
        seen = ended(trial)
        ledgers = [records.read(one.number, one.ledger) for one in trial.attempts()]
        found = verify([one for one in ledgers if one is not None], [key_files.public(KEY)])
        told = f"{world} ranks, SIGKILL behind step {SAVED}"
        rows += [
            claim(f"{told}: content digest", wanted[0][:16], seen[0][:16]),
            claim(f"{told}: exposure", wanted[1], seen[1]),
            claim(f"{told}: ledger", ("sound", "trusted", 1), _told(found)),
        ]
    return rows


def _told(found: Any) -> tuple[str, str, int]:
    return "sound" if found.bad is None else found.bad.code, found.signed, len(found.rollbacks)


def outcome(attempt: Attempt, code: str) -> str:
    """What became of an attempt: the code that it names, and how it went on."""
    verdict = attempt.verdict()
    checks = next((line["checks"] for line in attempt.lines() if "checks" in line), [])
    said = {one["code"]: one["outcome"] for one in checks if one["outcome"] != "unknown"}
    if verdict is None:
        return "no verdict"
    if verdict.verdict != "done":
        error = verdict.error or attempt.log()
        named = next((one for one in (f"G{n}" for n in range(101, 124)) if one in error), "none")
        stopped = {"resume": "other node"}.get(verdict.verdict, "stopped")
        return f"{named} {stopped}"
    if code == "G103" and said.get(code) == "recorded":
        return f"{code} older checkpoint"
    return f"{code} {said.get(code, 'not found')}"


def checks(trials: Trials) -> list[results.Row]:
    """Let each check meet what it is for."""
    bases = {
        "plain": (1, trials.policy()),
        "ranks": (2, trials.policy()),
        "unplanned": (1, trials.unplanned()),
    }
    killed: dict[str, TrialPaths] = {}
    for name, (world, policy) in bases.items():
        killed[name] = trials.make(f"base-{name}", world, policy)
        trials.kill(killed[name], world)
    rows = [control(trials)]
    for one in tampers.tampers(trials.statement):
        rows.append(tampered(trials, killed[one.base], one, bases[one.base][0]))
        trials.attest()
    return rows


def control(trials: Trials) -> results.Row:
    """Let a trial go on that was told to leave, and with which nobody tampered."""
    trial = trials.make("control", 1, trials.policy())
    ranks.run(trial, 1, LEAVE="train:9")
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    found = next((line["checks"] for line in attempt.lines() if "checks" in line), [])
    raised = sorted(one["code"] for one in found if one["outcome"] not in ("passed", "unknown"))
    codes = {one["code"] for one in found}
    done = None if verdict is None else verdict.verdict
    wanted = ("done", [], True)
    return claim("control: nothing was changed", wanted, (done, raised, len(codes) >= 18))


def tampered(trials: Trials, base: TrialPaths, one: Tamper, world: int) -> results.Row:
    """Tamper with a copy, and let it go on."""
    trial = trials.copy(base, f"check-{one.number}")
    one.act(trial)
    attempt = ranks.run(trial, world)
    row = claim(
        f"{one.number:>2} {one.what}", f"{one.code} {one.wanted}", outcome(attempt, one.code)
    )
    if not row["met"]:
        print(attempt.log()[-1500:])
    return row


def main() -> int:
    """Run all of it; 0 only if all is as wanted."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(Path(folder))
        rows = recovery(trials) + checks(trials)
    results.write("governed-recovery", rows)
    met = sum(row["met"] for row in rows)
    print(f"{met} of {len(rows)} as wanted, in {time.monotonic() - begin:.0f} s")
    return 0 if met == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
