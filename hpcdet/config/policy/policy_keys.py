"""The keys of a policy file, as pydantic models: types, bounds, defaults, meanings.

A key's meaning is the text below it; ``docs/reference/policy.md`` is made from the same.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from hpcdet.config.policy.predicates import Predicate, predicate
from hpcdet.store.config.bounded_patterns import expression

VERSION = "hpcdet/governance-v1"


def _date(value: Any) -> Any:
    if isinstance(value, str):
        try:
            datetime.date.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{value!r} is no date", "write it as 2027-12-31") from None
    return value


def _depth(value: Any) -> Any:
    """A number is a depth from itself to itself."""
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) == 2 and all(isinstance(x, int | float) for x in pair) and pair[0] > pair[1]:
        hint = "first the smaller one: 0 is the input, 1 the output"
        raise ValueError(f"{pair[0]} lies behind {pair[1]}", hint)
    return pair


def _anchor(value: Any) -> Any:
    """``{file: DIR}`` and ``{command: [...]}`` as text, as ``file:DIR`` is."""
    import shlex

    if isinstance(value, dict) and len(value) == 1:
        [(kind, what)] = value.items()
        if kind == "file" and isinstance(what, str):
            value = f"file:{what}"
        elif kind == "command" and isinstance(what, list) and all(isinstance(w, str) for w in what):
            value = f"command:{shlex.join(what)}"
    kind, _, what = value.partition(":") if isinstance(value, str) else ("", "", "")
    if value == "syslog" or (kind == "file" and what.startswith("/")):
        return value
    if kind == "file" and what.strip():
        said = f"the folder of an anchor has an absolute path, and {what!r} has none"
        raise ValueError(said, "file:/FOLDER, on storage that nodes share")
    program = shlex.split(what)[:1] if kind == "command" else []
    if not program:
        said = "an anchor is syslog, file:DIR, or {command: [PROGRAM, ...]}"
        raise ValueError(said, "ledger: {anchor: [syslog]}")
    if "/" in program[0] and not program[0].startswith("/"):
        said = f"{program[0]!r} is neither a name on PATH nor an absolute path"
        raise ValueError(said, "write the program's path from / on")
    return value


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9._-]{1,64}$")]
LayerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Text = Annotated[str, Field(min_length=1, max_length=4096)]


class PolicySection(BaseModel):
    """A map of the policy: no unknown keys, no conversion of types."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        arbitrary_types_allowed=True,
        defer_build=True,  # only the whole is ever validated: its parts need no validators, and
        # defaults are made by model_construct, which does not ask for one
    )


class TrustKeys(PolicySection):
    id: Name
    """What records call the key."""
    role: Literal["site", "data", "policy", "run"]
    """What it may sign: site: statements of nodes; data: provenance chains; policy: approvals;
    run: ledgers and checkpoints."""
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """The Ed25519 public key, 64 hexadecimal digits."""


class LayerKeys(PolicySection):
    id: LayerName
    """Its name in rules and reports."""
    match: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(expression)]
    """A regular expression, searched in the names of parameters; each is in exactly one layer."""
    depth: Annotated[list[Share], Field(min_length=2, max_length=2), BeforeValidator(_depth)] = (
        Field(default_factory=lambda: [0.0, 1.0])
    )
    """Where it lies: 0 is the input, 1 the output; a number, or from where to where."""
    lane: bool = False
    """Only the sources that may change it use it, too (pytorch.Lane)."""
    frozen: bool = False
    """Nothing may change it."""


class ManifestKeys(PolicySection):
    uri: Text
    """The file that lists the source's records; relative to the model's folder."""
    merkle_root: Digest
    """The digest of all records, as hpcdet data manifest prints it."""


class ChainKeys(PolicySection):
    uri: Text
    """The file with the provenance chain; relative to the model's folder."""
    head: Digest
    """The digest of its link admit, as hpcdet data chain show prints it."""


class AgreementKeys(PolicySection):
    id: Text
    """What its owner calls it."""
    expires: Annotated[str, BeforeValidator(_date)] = ""
    """The last day on which the source may be used, as 2027-12-31; it does not expire if absent."""
    requires: list[LayerName] = []
    """Capabilities that nodes must have."""


class SourceKeys(PolicySection):
    id: Name
    """Its name, as the data loader gives it: small letters, digits, and . _ -"""
    labels: dict[LayerName, Text] = {}
    """What rules may ask for."""
    share: Positive | None = None
    """Its planned part of the training data, in any unit; all sources have one, or none."""
    manifest: ManifestKeys | None = None
    """The list of its records."""
    chain: ChainKeys | None = None
    """Where its records come from."""
    agreement: AgreementKeys | None = None
    """What its owner has agreed to."""


class RuleKeys(PolicySection):
    id: LayerName
    """What reports call it."""
    match: Annotated[Predicate, BeforeValidator(predicate)]
    """The sources that it is about: source, label.NAME (a text, or in, glob), all, any, not."""
    layers: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=64)]
    """The layers that it is about: names or patterns with *; !NAME leaves one out."""
    weight: Share
    """How much of the sources' gradient these layers get: 0 none, 1 all."""


class CoverageKeys(PolicySection):
    min: Share = 1.0
    """The least share of what layers learn from that has a complete provenance chain."""
    per_layer: bool = True
    """Each layer has to reach it, not only all together."""


class SourceExposureKeys(PolicySection):
    check: Literal[True] = True
    """The mixture that layers learn from is compared with the planned one."""
    sigmas: Positive = 3.0
    """Standard deviations by which it may miss."""


class BandKeys(PolicySection):
    sd_mult: Positive = 4.0
    """Standard deviations of the reference that a layer may lie off."""
    floor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.005
    """It may always lie so far off."""


class SpectralKeys(PolicySection):
    estimator: Literal["svd_or_pr"] = "svd_or_pr"
    """Singular values up to max_side, the participation ratio above it."""
    max_side: Annotated[int, Field(ge=1, le=65536)] = 1024
    """The largest side of a matrix whose singular values are computed."""
    probes: Annotated[int, Field(ge=1, le=4096)] = 32
    """Random vectors of the participation ratio."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 7
    """Their seed."""
    expected: dict[LayerName, Annotated[list[Share], Field(min_length=2, max_length=2)]] = {}
    """By layer: mean and standard deviation over reference runs of the same recipe; or the name of
    a JSON file beside the policy that holds them."""
    band: BandKeys = BandKeys.model_construct()
    """How far a layer may lie off what is expected."""
    on_violation: Literal["warn", "hold"] = "warn"
    """What happens then at a resume: a warning, or the trial stops until someone decides."""


class EntropyKeys(PolicySection):
    source_exposure: SourceExposureKeys = SourceExposureKeys.model_construct()
    """Entropy of what each layer has learned from."""
    spectral: SpectralKeys | Literal[False] = SpectralKeys.model_construct()
    """Entropy of the weights' singular values; false: not measured."""


class TwinsKeys(PolicySection):
    pairs: Annotated[int, Field(ge=1, le=10**6)] = 100
    """Pairs of records of each source, of which one is never trained."""
    withhold: list[Name] = []
    """Sources that have them; all if absent."""
    metric: Text = "loss"
    """The value of each example that is compared."""
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The probability of one false verdict in the whole search."""


class CanariesKeys(PolicySection):
    per_source: Annotated[int, Field(ge=1, le=10**5)] = 20
    """Invented records of each source that are trained; among 50 times as many others, and at
    least 1000, their losses are ranked."""
    space_bits: Annotated[int, Field(ge=1, le=62)] = 20
    """They are drawn from so many possible ones, as a power of two."""
    repeats: Annotated[list[Annotated[int, Field(ge=1, le=10**4)]], Field(min_length=1)] = [1]
    """How often they are trained in an epoch: the first one so often, the second ..., in turn."""
    sources: list[Name] = []
    """Sources that have them; all if absent."""


class MemorizationKeys(PolicySection):
    twins: TwinsKeys | None = None
    """Pairs of exchangeable records; a keyed coin keeps one of each out of the training."""
    canaries: CanariesKeys | None = None
    """Invented records whose loss is ranked among that of others like them, at alpha and by the
    metric of twins: loss and 0.05 without any."""
    max_advantage: Share = 0.2
    """The advantage in telling trained from withheld records, and the share of the exposure that
    canaries can have, above which a trial has memorized."""
    on_violation: Literal["prune", "stop", "warn"] = "prune"
    """What follows: the trial ends, the experiment pauses, or a warning."""


class RequiresKeys(PolicySection):
    capabilities: list[LayerName] = []
    """What nodes must offer, by the site's names."""
    statement: Literal["declared", "signed"] = "declared"
    """How they must say so: declared: by the site's file; signed: by the node's statement."""


class LedgerKeys(PolicySection):
    segment_records: Annotated[int, Field(ge=1, le=10**6)] = 1000
    """Records between two seals."""
    anchor: list[Annotated[str, BeforeValidator(_anchor)]] = []
    """What else gets each head of the ledger: syslog, file:DIR, {command: [PROGRAM, ...]}."""


class TightenKeys(PolicySection):
    approvals: Annotated[int, Field(ge=0, le=16)] = 0
    """Signatures that a stricter policy needs."""


class LoosenKeys(PolicySection):
    approvals: Annotated[int, Field(ge=0, le=16)] = 1
    """Signatures that a policy needs which allows more."""
    role: Literal["policy"] = "policy"
    """The role of the keys that give them."""


class RevokeKeys(PolicySection):
    reset_optimizer: Literal[True] = True
    """An optimizer forgets a layer's state where a source is denied it that had it."""
    action: Literal["drop", "stop"] = "drop"
    """At the next attempt: drop: training goes on without it, recorded; stop: the trial ends.
    The same holds where an agreement has ended."""


class ChangesKeys(PolicySection):
    tighten: TightenKeys = TightenKeys.model_construct()
    """A policy that allows less."""
    loosen: LoosenKeys = LoosenKeys.model_construct()
    """A policy that allows more somewhere."""
    revoke: RevokeKeys = RevokeKeys.model_construct()
    """A source that is withdrawn."""


class ProbeEveryKeys(PolicySection):
    batches: Annotated[int, Field(ge=0)]
    """0: the first step of each attempt only."""


class PolicyKeys(PolicySection):
    apiVersion: Literal["hpcdet/governance-v1"]  # noqa: N815 - the file's own spelling
    """hpcdet/governance-v1"""
    name: Name
    """What people call the policy."""
    version: Annotated[int, Field(ge=1)]
    """Counts up with each change."""
    description: str = ""
    """Free text: what it is for."""
    assurance: Literal["direct", "state_clean", "isolated"] = "state_clean"
    """direct: gradients; state_clean: also the state of optimizers, clipping and divisors;
    isolated: lanes that only their sources use."""
    unknown_source: Literal["deny", "drop"] = "deny"
    """Records of a source that is not listed: an error, or left out and counted."""
    normalize: Literal["per_layer", "global"] = "per_layer"
    """A layer's gradient is the mean over what it admits, or over the whole batch."""
    mixed_examples: Literal["min", "reject"] = "min"
    """A record of several sources: it may change what each of them may, or is an error."""
    trust: list[TrustKeys] = []
    """Public keys that may sign."""
    layers: Annotated[list[LayerKeys], Field(min_length=1, max_length=256)]
    """The layers, each with the parameters that it holds."""
    sources: Annotated[list[SourceKeys], Field(min_length=1, max_length=1024)]
    """The sources of data."""
    rules: Annotated[list[RuleKeys], Field(min_length=1, max_length=256)]
    """Which sources may change which layers; the first that fits a source and a layer decides."""
    default: Share = 0.0
    """The weight where no rule fits."""
    min_mass: dict[LayerName, Share] = {}
    """By layer: the least share of the planned training data that must reach it."""
    coverage: CoverageKeys = CoverageKeys.model_construct()
    """How much of the data must have a provenance."""
    entropy: EntropyKeys = EntropyKeys.model_construct()
    """Entropies, and how far they may lie off."""
    memorization: MemorizationKeys | None = None
    """What is measured of memorization, and what follows."""
    probe_every: ProbeEveryKeys = ProbeEveryKeys.model_construct(batches=500)
    """Batches between two probes of the live model."""
    requires: RequiresKeys = RequiresKeys.model_construct()
    """What nodes must offer."""
    ledger: LedgerKeys = LedgerKeys.model_construct()
    """How the ledger is written."""
    changes: ChangesKeys = ChangesKeys.model_construct()
    """Approvals that changes of the policy need."""
    ablation: Literal["refused", "allowed"] = "refused"
    """Whether hpcdet fork --without-routing may train every source in every layer, as a control."""
