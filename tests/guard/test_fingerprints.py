"""What checkpoints say of weights, optimizers, random numbers and code is compared at a resume."""

from __future__ import annotations

import copy
import math
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet import checkpoint
from hpcdet.guard.resume import fingerprints
from hpcdet.guard.resume.fingerprints import Fingerprints
from hpcdet.policy import measures
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import Entropy
from tests import ranks
from tests.guard.test_governed import MODEL, make, policy, state_of
from tests.guard.test_state import Trial
from tests.pytorch.test_bits_local import interrupt, signals

pytestmark = pytest.mark.xdist_group("governed")

RNG = {"torch": torch.arange(9, dtype=torch.uint8), "numpy": ("MT19937", [1, 2], 3)}
SLOTS = {"0.0.weight": {"exp_avg": torch.ones(8, 6), "step": torch.tensor(4.0)}}
GROUP = {"lr": 0.01, "betas": (0.9, 0.99), "fused": None, "params": ["0.0.weight"]}
STATES: list[Any] = [{"state": SLOTS, "param_groups": [GROUP]}]


class Prints:
    """Fingerprints of a trial on one rank."""

    def __init__(self, **entropy: Any) -> None:
        self.trial = Trial(policy(entropy=Entropy(**entropy)))
        self.prints = Fingerprints(self.trial.guard, 0, 1, lambda value: [value])
        self.states = copy.deepcopy(STATES)
        self.rng: Any = copy.deepcopy(RNG)

    def take(self) -> Any:
        return self.prints.take(self.trial.parameters, self.states, self.rng, when="always")

    def compare(self, saved: Any, **how: Any) -> dict[str, str]:
        options = {"inherited": False, **how}
        checks = self.prints.compare(saved, self.trial.parameters, self.states, self.rng, **options)
        return {one.code: one.outcome for one in checks}

    def broken(self, saved: Any) -> str:
        with pytest.raises(GovernanceBroken) as found:
            self.compare(saved)
        return found.value.check


def test_what_was_put_back_as_it_was_passes() -> None:
    saved = Prints().take()
    found = Prints().compare(saved)
    assert found == {"G116": "passed", "G117": "unknown", "G120": "passed", "G122": "passed"}


def test_entropies_are_those_of_singular_values() -> None:
    one = Prints()
    saved = one.take()["spectral"]
    assert set(saved["parameters"]) == {"0.0.weight", "0.4.weight", "0.6.weight"}
    for name, (value, estimator, dtype) in saved["parameters"].items():
        weight = one.trial.parameters[name].detach().double().numpy()
        shares = np.linalg.svd(weight, compute_uv=False)
        shares = shares / shares.sum()
        rank = min(weight.shape)
        entropy = float(-(shares * np.log(shares)).sum()) / (math.log(rank) if rank > 1 else 1)
        assert value == pytest.approx(entropy, abs=1e-9)
        assert (estimator, dtype) == ("svd", "float32")
    assert saved["layers"]["low"] == saved["parameters"]["0.0.weight"][0]
    wide = Prints(max_side=7).take()["spectral"]["parameters"]["0.4.weight"]
    weight = one.trial.parameters["0.4.weight"].detach().double().numpy()
    ratio = measures.spectrum(weight, 7, 32, 7).squares
    assert wide[:2] == [pytest.approx(math.log(ratio) / math.log(8)), "probes"]


def test_weights_that_were_edited_are_found() -> None:
    saved = Prints().take()
    edited = Prints()
    with torch.no_grad():
        edited.trial.parameters["0.4.weight"][0] *= 1.1
    assert edited.broken(saved) == "G116"
    gone = copy.deepcopy(saved)
    del gone["spectral"]["parameters"]["0.4.weight"]
    assert Prints().broken(gone) == "G116"
    rounded = copy.deepcopy(saved)
    rounded["spectral"]["parameters"]["0.4.weight"][0] += 5e-5
    assert Prints().compare(rounded)["G116"] == "passed"
    assert Prints(seed=8).compare(saved)["G116"] == "unknown"


def test_the_state_of_an_optimizer_that_was_edited_is_found() -> None:
    saved = Prints().take()
    for edit in (
        lambda slots: slots["exp_avg"].__setitem__((3, 3), 1 + 1e-6),
        lambda slots: slots.update(step=torch.tensor(5.0)),
        lambda slots: slots.pop("step"),
        lambda slots: slots.update(exp_avg=slots["exp_avg"].double()),
    ):
        edited = Prints()
        edit(edited.states[0]["state"]["0.0.weight"])
        assert edited.broken(saved) == "G120"
    assert edited.compare(saved, inherited=True)["G120"] == "unknown"


def test_random_numbers_that_were_edited_are_found() -> None:
    saved = Prints().take()
    edited = Prints()
    edited.rng["torch"][4] += 1
    assert edited.broken(saved) == "G120"
    edited.rng = None  # with another number of ranks
    assert edited.compare(saved)["G120"] == "passed"


def test_another_router_is_told() -> None:
    saved = Prints().take()
    saved["software"]["router"] = "sha256:" + "0" * 64
    assert Prints().compare(saved)["G122"] == "warned"
    assert Prints().compare({})["G122"] == "warned"


def test_the_routers_digest_is_of_its_code(tmp_path: Path, monkeypatch: Any) -> None:
    source = Path(fingerprints.__file__).parent.parent
    for folder in ("routing", "stepping", "resume"):
        (tmp_path / folder).mkdir()
        for one in (source / folder).glob("*.py"):
            (tmp_path / folder / one.name).write_bytes(one.read_bytes())
    monkeypatch.setattr(fingerprints, "__file__", str(tmp_path / "resume" / "fingerprints.py"))
    digest = fingerprints.code_digest.__wrapped__
    assert digest() == fingerprints.code_digest()
    path = tmp_path / "routing" / "operators.py"
    path.write_bytes(path.read_bytes().replace(b"*", b"+", 1))
    assert digest() != fingerprints.code_digest()


def test_a_layer_outside_of_its_band_is_told_or_held() -> None:
    saved = Prints().take()
    value = saved["spectral"]["layers"]["high"]
    for mean, deviation, inside in ((value, 0.0, True), (value - 0.02, 0.001, False)):
        reference = {"high": (mean, deviation)}
        warned = Prints(reference=reference)
        assert warned.compare(warned.take())["G117"] == ("passed" if inside else "warned")
        assert warned.take()["spectral"]["outside"] == ([] if inside else ["high"])
        held = Prints(reference=reference, on_violation="hold")
        if inside:
            assert held.compare(held.take())["G117"] == "passed"
        else:
            assert held.broken(held.take()) == "G117"
    assert Prints(reference={"high": (value - 0.02, 0.006)}).compare(saved)["G117"] == "passed"


def test_ranks_share_the_work_and_agree() -> None:
    whole = Prints().take()
    barrier, told, found = threading.Barrier(3), {}, {}
    alike = [Prints() for _ in range(3)]  # before the threads, which share torch's generator

    def rank(number: int) -> None:
        one = alike[number]

        def gather(value: Any) -> list[Any]:
            told[number] = value
            barrier.wait(60)
            everyone = [told[n] for n in range(3)]
            barrier.wait(60)
            return everyone

        prints = Fingerprints(one.trial.guard, number, 3, gather)
        found[number] = prints.take(one.trial.parameters, one.states, None, when="always")

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert found[0] == found[1] == found[2]
    assert found[0]["spectral"] == whole["spectral"] and found[0]["optimizer"] == whole["optimizer"]


def test_the_options_of_an_optimizer_are_compared_each_by_its_name() -> None:
    saved = Prints().take()
    for name, value in (("lr", 0.02), ("betas", (0.9, 0.999)), ("params", ["0.4.weight"])):
        edited = Prints()
        edited.states[0]["param_groups"][0][name] = value
        with pytest.raises(GovernanceBroken, match=rf"G120.*option {name} of optimizer 0"):
            edited.compare(saved)
        assert edited.compare(saved, inherited=True)["G120"] == "unknown"
    newer = Prints()  # of torch, which has an option more
    newer.states[0]["param_groups"][0]["capturable"] = False
    assert newer.compare(saved)["G120"] == "passed"
    more = Prints()
    more.states[0]["param_groups"].append({"lr": 0.01, "params": []})
    assert more.broken(saved) == "G120"


def test_a_checkpoint_to_go_on_from_is_measured_where_it_costs_little(monkeypatch: Any) -> None:
    one, wall, cpu = Prints(), [100.0], [5.0]
    monkeypatch.setattr(fingerprints.time, "monotonic", lambda: wall[0])
    monkeypatch.setattr(fingerprints.time, "thread_time", lambda: cpu[0])
    real, took, waited = one.prints._optimizer, 2.0, 0.0

    def slow(states: Any) -> Any:
        cpu[0] += took
        wall[0] += took + waited
        return real(states)

    monkeypatch.setattr(one.prints, "_optimizer", slow)

    def measured(when: Any) -> bool:
        found = one.prints.take(one.trial.parameters, one.states, None, when=when)
        return "spectral" in found and "options" in found

    assert measured("if cheap")
    wall[0] += 199
    assert not measured("if cheap") and not measured("in haste")
    assert measured("always")
    wall[0] += 201
    assert measured("if cheap")
    took = 0.9
    assert measured("always") and not measured("if cheap") and measured("in haste")
    took, waited = 0.04, 60.0  # for a processor that others keep busy
    assert measured("always")
    assert measured("if cheap") and measured("if cheap")


def test_a_checkpoint_without_fingerprints_says_why() -> None:
    one = Prints()
    checks = one.prints.compare(
        {"software": {}}, one.trial.parameters, one.states, one.rng, inherited=False
    )
    said = {one.code: one.detail for one in checks if one.outcome == "unknown"}
    assert said == dict.fromkeys(("G116", "G117", "G120"), fingerprints.UNMEASURED)


TAMPERS = {
    "none": "",
    "G116": "state['models'][0]['4.weight'][0] *= 1.5",
    "G120": "next(iter(state['optimizers'][0]['state'].values()))['exp_avg'][0] += 1",
    "G120: ": "state['optimizers'][0]['param_groups'][0]['lr'] *= 10",
}
CALLBACK = """
class Tamper(pytorch.PyTorchCallback):
    def on_checkpoint_load_start(self, state):
        if "TAMPER" in os.environ:
            exec(os.environ["TAMPER"])
"""


@pytest.mark.parametrize("world", [1, 2])
def test_a_trial_goes_on_from_what_was_saved_and_from_nothing_else(
    world: int, tmp_path: Path
) -> None:
    trial = make(tmp_path / "EXP", world, policy())
    code = MODEL.replace("class First:", f"{CALLBACK}\n\nclass First:").replace(
        "    def evaluate_batch",
        "    def build_callbacks(self):\n"
        "        return {'tamper': Tamper()}\n\n    def evaluate_batch",
    )
    (tmp_path / "EXP" / "code" / "model_def.py").write_text(code)
    first = interrupt(trial, tmp_path / "1", "train:5", signals(signal.SIGUSR2, world - 1), world)
    assert first.verdict() is not None, first.log()
    assert state_of(trial)[1]["expected"]["value"][0] == 0
    [*_, last] = sorted(trial.checkpoints.glob("*.g1"))
    block = checkpoint.load(last).manifest.meta["governance"]
    assert set(block["spectral"]["layers"]) == {"low", "high", "head"}
    assert len(block["generators"]) == world and block["conformance"] > 1 - 1e-9
    for code, tamper in reversed(TAMPERS.items()):
        attempt = ranks.run(trial, world, **({"TAMPER": tamper} if tamper else {}))
        verdict = attempt.verdict()
        assert verdict is not None, attempt.log()
        assert (verdict.verdict == "done") == (not tamper), attempt.log()
        assert tamper == "" or code in attempt.log(), attempt.log()
    [checks] = [line["checks"] for line in attempt.lines() if "checks" in line]
    found = {one["code"]: one["outcome"] for one in checks}
    assert {found[code] for code in ("G116", "G118", "G120", "G122")} == {"passed"}
    reported = [line["metrics"] for line in attempt.lines() if line.get("group") == "validation"]
    assert reported[-1]["gov.conformance"] > 1 - 1e-9
