"""One change for each of the checks of a resume, which breaks what that check is about.

Each is made to the files of a trial that has left in good order, and whose untouched copy passes
all checks. Only for check 6 the trial was killed: a ledger that is ahead of its checkpoint is what
a crash leaves.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.governed import forging
from hpcdet.policy import measures
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.provenance.chains import Artifact, SourceChain, extend
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.fs import sealed_json, yaml_bounds

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
"""Of the runs of the campaign."""


@dataclass(frozen=True)
class Tamper:
    """A change of a trial's files.

    Attributes:
        number: of the check; ``what``: what is done.
        wanted: the outcome by default: ``stopped``, ``older checkpoint``, ``dropped``,
            ``recorded``, ``warned``, ``refused by the node``.
        follows: what else is recorded because of it: codes with their outcomes.
        base: the trial that it is done to.
    """

    number: int
    what: str
    wanted: str
    act: Callable[[TrialPaths], Any]
    follows: tuple[str, ...] = ()
    base: str = "plain"

    @property
    def code(self) -> str:
        """The check's code."""
        return f"G{100 + self.number}"


def _paths(trial: TrialPaths) -> ExperimentPaths:
    return ExperimentPaths(trial.root.parent.parent)


def _forged(**how: Any) -> Callable[[TrialPaths], Any]:
    return lambda trial: forging.forge(trial, KEY, **how)


def _governance(change: forging.Change) -> forging.Change:
    return lambda shared: change(shared["governance"])


def _said(change: forging.Change) -> Callable[[TrialPaths], Any]:
    """Change a manifest without the key."""

    def act(trial: TrialPaths) -> None:
        path = forging.newest(trial).folder / "MANIFEST.json"
        raw = json.loads(path.read_text())
        change(raw["meta"]["governance"])
        path.write_bytes(sealed_json.text(sealed_json.sealed(raw)))

    return act


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _torn(trial: TrialPaths) -> None:
    [shard] = forging.newest(trial).folder.glob("rank-*-of-*[0-9].h5")
    _flip(shard, shard.stat().st_size // 2)


def _ledger(change: Callable[[list[bytes]], Any]) -> Callable[[TrialPaths], Any]:
    def act(trial: TrialPaths) -> None:
        path = trial.attempt(1).ledger
        lines = path.read_bytes().splitlines(keepends=True)
        change(lines)
        path.write_bytes(b"".join(lines))

    return act


def _other_count(lines: list[bytes]) -> None:
    place = next(n for n, one in enumerate(lines) if b'"step_batch"' in one)
    lines[place] = lines[place].replace(b'"dropped":0', b'"dropped":1')


def _policy(change: Callable[[CompiledPolicy], CompiledPolicy]) -> Callable[[TrialPaths], Any]:
    """Put another policy into the experiment, and its digest into the config."""

    def act(trial: TrialPaths) -> None:
        paths = _paths(trial)
        made = change(CompiledPolicy.load(paths.compiled_policy))
        paths.compiled_policy.write_text(made.to_json())
        config = yaml_bounds.mapping(paths.config)
        config["governance"]["digest"] = made.digest
        paths.config.write_bytes(resolved_config.dump(config))

    return act


def _other_plan(trial: TrialPaths) -> None:
    """Another planned mixture, wherever the policy is written; every digest is right again."""
    paths = _paths(trial)
    before = CompiledPolicy.load(paths.compiled_policy)
    shares = zip(before.sources, (98.0, 1.0, 1.0), strict=True)
    plan = tuple(dataclasses.replace(one, share=share) for one, share in shares)
    made = dataclasses.replace(before, sources=plan)
    _policy(lambda _: made)(trial)

    def everywhere(one: dict[str, Any]) -> None:
        text = json.dumps(one).replace(before.digest, made.digest)
        one.update(json.loads(text))

    def state(one: dict[str, Any]) -> None:
        one.update(policy=made.digest, compiled=made.to_json())

    forging.forge(trial, KEY, _governance(state), said=everywhere, record=everywhere)


def _looser(policy: CompiledPolicy) -> CompiledPolicy:
    [first, *others] = policy.matrix
    return dataclasses.replace(policy, matrix=((1.0, *first[1:]), *others))


def _withdraw(trial: TrialPaths) -> None:
    path = _paths(trial).code / "b.chain"
    chain = SourceChain.load(path)
    subject = [Artifact("b", chain.links[-1].subject[0].sha256)]
    link = extend(chain, "revoke", subject, actor="ada")
    path.write_bytes(path.read_bytes() + link.to_bytes() + b"\n")


def _code(old: str, new: str) -> Callable[[TrialPaths], Any]:
    def act(trial: TrialPaths) -> None:
        path = _paths(trial).code / "model_def.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return act


def _other_weights(state: dict[str, Any]) -> None:
    raw = json.loads(state["compiled"])
    raw["matrix"][1][2] = 0.5
    raw.pop("digest")
    raw["schema"] = "hpcdet-policy/1"
    state["compiled"] = json.dumps(raw)


def _swapped(state: dict[str, Any]) -> None:
    """As many rows, of other sources, in exposure and E alike."""
    rows = state["exposure"]["rows"]
    rows["a"], rows["b"] = rows["a"] - 1, rows["b"] + 1
    exposed = np.array(state["E"])
    exposed[0] -= exposed[0] / (rows["a"] + 1)
    exposed[1] += exposed[1] / (rows["b"] - 1)
    state["E"] = exposed


def _more(state: dict[str, Any]) -> None:
    rows = state["exposure"]["rows"]
    state["E"] = np.array(state["E"])
    state["E"][0] *= (rows["a"] + 1) / rows["a"]
    rows["a"] += 1


class _OneMore:
    """A row more in the first ``step_batch``."""

    def __init__(self) -> None:
        self.done = False

    def __call__(self, one: dict[str, Any]) -> None:
        if one["type"] == "step_batch" and not self.done:
            self.done = True
            counts = one["body"]["counts"]
            one["body"]["counts"] = {**counts, "a": counts["a"] + 1}


def _weight(name: str) -> forging.Change:
    def change(shared: dict[str, Any]) -> None:
        with torch.no_grad():
            shared["models"][0][name][0] *= 1.5

    return change


COLLAPSED = "4.weight"
"""The weight of the layer ``high``."""


def _collapse(shared: dict[str, Any]) -> None:
    """All rows of a weight become the same: one singular value is left."""
    with torch.no_grad():
        weight = shared["models"][0][COLLAPSED]
        weight[:] = weight[0]


def _collapsed(said: dict[str, Any]) -> None:
    """The entropies that such a weight has."""
    spectral = said["spectral"]
    entropy = measures.spectrum(np.ones((8, 8)), *spectral["settings"]).entropy
    spectral["parameters"][f"0.{COLLAPSED}"][0] = entropy
    spectral["layers"]["high"], spectral["outside"] = entropy, ["high"]


def _moment(shared: dict[str, Any]) -> None:
    states = shared["optimizers"][0]["state"]
    slot = next(one for one in states.values() if "exp_avg" in one)
    slot["exp_avg"].view(-1)[0] += 1


_LEAKS = _code(
    '        return functional.mse_loss(self.model(x)[:, 0], y, reduction="none")',
    '        base = functional.mse_loss(self.model(x)[:, 0], y, reduction="none")\n'
    '        module = getattr(self.model, "module", self.model)\n'
    "        return base + (module[4].weight ** 2).sum()",
)


def tampers(statement: Path) -> list[Tamper]:
    """All of them.

    Args:
        statement: file of the statement of this machine.
    """
    return [
        Tamper(
            1,
            "another version of the state",
            "stopped",
            _forged(state=_governance(lambda one: one.update(schema=99))),
        ),
        Tamper(2, "the signature taken away", "stopped", _said(lambda one: one.pop("seal"))),
        Tamper(3, "a byte of a rank's file", "older checkpoint", _torn, ("G106 recorded",)),
        Tamper(4, "a count in the ledger", "stopped", _ledger(_other_count)),
        Tamper(
            5,
            "the end of the ledger cut off",
            "stopped",
            _ledger(lambda lines: lines.__delitem__(slice(8, None))),
        ),
        Tamper(
            6, "SIGKILL, steps behind the checkpoint", "recorded", lambda _: None, base="killed"
        ),
        Tamper(
            7, "another state on one rank", "stopped", _code("# on load", _DIFFERS), base="ranks"
        ),
        Tamper(8, "a looser policy", "stopped", _policy(_looser)),
        Tamper(
            9,
            "a layer of another shape",
            "stopped",
            _forged(
                state=_governance(lambda one: one["layers"][0][2][1].__setitem__(0, 9)),
            ),
        ),
        Tamper(
            10,
            "a policy of other weights than its digest's",
            "stopped",
            _forged(state=_governance(_other_weights)),
        ),
        Tamper(
            11,
            "a byte of a source's data",
            "stopped",
            lambda trial: _flip(_paths(trial).code / "data" / "a" / "x.csv", 0),
        ),
        Tamper(12, "a source withdrawn by its owner", "dropped", _withdraw, ("G108 recorded",)),
        Tamper(13, "a source that nobody knows", "stopped", _code('"c": 12', '"z": 12')),
        Tamper(
            14,
            "rows of another source",
            "stopped",
            _forged(state=_governance(_swapped)),
        ),
        Tamper(
            15,
            "a layer that nothing may change",
            "stopped",
            _forged(state=_weight("0.weight")),
        ),
        Tamper(16, "weights", "stopped", _forged(state=_weight("4.weight"))),
        Tamper(
            17,
            "weights out of their band, and their entropies",
            "warned",
            _forged(state=_collapse, said=_collapsed),
        ),
        Tamper(18, "another planned mixture, in all files", "warned", _other_plan),
        Tamper(
            19,
            "a row more, in state and ledger",
            "stopped",
            lambda trial: forging.forge(trial, KEY, _governance(_more), record=_OneMore()),
        ),
        Tamper(20, "a moment of the optimizer", "stopped", _forged(state=_moment)),
        Tamper(
            21,
            "the statement of another node",
            "refused by the node",
            lambda _: statement.with_name("other").replace(statement),
        ),
        Tamper(
            22,
            "other code that routes",
            "warned",
            _forged(said=lambda one: one.update(software={"router": "sha256:" + "0" * 64})),
        ),
        Tamper(23, "code with a gradient that leaks", "stopped", _LEAKS),
    ]


_DIFFERS = """
        if os.environ.get("RANK") == "1":
            state["governance"]["dropped"] = 1
"""
