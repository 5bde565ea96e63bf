"""A policy as it is enforced: which source may change which layer, by which weight.

A policy's text is compiled at submission (``hpcdet.config``) into this, which is written once as
``policy.json``. Layers are groups of parameters here: which parameters of a model they hold is
known when a trial has made its model.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hpcdet.policy.codes import GovernanceBroken
from hpcdet.store.fs import files, typed_fields

if TYPE_CHECKING:  # it takes a tenth of a second to import, and checking a policy does not need it
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = "hpcdet-policy/1"
LARGEST = 16 << 20
"""Bytes of a ``policy.json``."""
REFERENCES_EACH = 50
"""Invented records that nobody trains, for each canary of a source."""
FEWEST_REFERENCES = 1000
"""At least so many."""

MIX = "+"
"""Between the sources of a row that has several."""

Matrix: TypeAlias = "NDArray[np.float64]"
"""Weights in [0, 1], float64[sources, layers]: how much of a source's gradient a layer gets."""

Assurance = Literal["none", "direct", "state_clean", "isolated"]
"""``none``: of the control of an ablation, which is trained without routing."""


@dataclass(frozen=True)
class LayerGroup:
    """A layer: the parameters whose names ``match`` finds.

    Attributes:
        match: a regular expression, searched in the names of parameters.
        depth: from where to where it lies, 0 the input, 1 the output.
        lane: it is used by the sources that may change it and by no other.
        frozen: nothing may change it.
        min_mass: the least share of the planned exposure that must reach it, in [0, 1].
    """

    id: str
    match: str
    depth: tuple[float, float] = (0.0, 1.0)
    lane: bool = False
    frozen: bool = False
    min_mass: float = 0.0


@dataclass(frozen=True)
class FileDigest:
    """A file that a policy rests on, and the digest of what it must say."""

    uri: str
    digest: str = ""


@dataclass(frozen=True)
class UseAgreement:
    """An agreement with the owner of a source.

    Attributes:
        expires: ISO 8601 date after which the source may not be used; "" if it does not expire.
        requires: capabilities of nodes.
    """

    id: str
    expires: str = ""
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSource:
    """The smallest unit of data with one owner, one agreement and one treatment.

    Attributes:
        share: planned part of the training data, in any unit; 0 of all if none is planned.
    """

    id: str
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    manifest: FileDigest | None = None
    chain: FileDigest | None = None
    agreement: UseAgreement | None = None
    share: float = 0.0


@dataclass(frozen=True)
class TrustedKey:
    """An Ed25519 public key, hex, and what it may sign: ``site``, ``data``, ``policy``, ``run``."""

    id: str
    role: str
    key: str


@dataclass(frozen=True)
class Coverage:
    """``min``: the least share of the exposure, in [0, 1], that comes from complete chains."""

    min: float = 1.0
    per_layer: bool = True


@dataclass(frozen=True)
class Entropy:
    """Limits of entropies.

    Attributes:
        sigmas: standard deviations by which a layer's exposure entropy may miss its expectation.
        spectral: spectral entropies are measured at kept checkpoints.
        reference: expected spectral entropies by layer, of a reference run; empty: none.
        sd_mult, floor: a band is the reference plus or minus the larger of ``sd_mult`` standard
            deviations and ``floor``.
        on_violation: consequence of a layer that is out of its band at a resume.
    """

    sigmas: float = 3.0
    spectral: bool = True
    max_side: int = 1024
    probes: int = 32
    seed: int = 7
    reference: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    sd_mult: float = 4.0
    floor: float = 0.005
    on_violation: Literal["warn", "hold"] = "warn"


@dataclass(frozen=True)
class Twins:
    """Randomised held-out twins of each source.

    Attributes:
        pairs: per source.
        withhold: sources whose twins are made; empty: all.
        metric: the per-example value that is compared.
        alpha: probability of a false verdict over the whole search.
    """

    pairs: int = 100
    withhold: tuple[str, ...] = ()
    metric: str = "loss"
    alpha: float = 0.05


@dataclass(frozen=True)
class Canaries:
    """Invented records, trained ``repeats`` times each, whose likelihood is ranked.

    Attributes:
        per_source: that are trained.
        space_bits: of the codes that they are made from.
        repeats: how often each is trained in an epoch, dealt out in turn.
        sources: that have them; empty: all.
    """

    per_source: int = 20
    space_bits: int = 20
    repeats: tuple[int, ...] = (1,)
    sources: tuple[str, ...] = ()

    @property
    def references(self) -> int:
        """Invented records of a source that nobody trains, among which its canaries are ranked.

        So many that canaries share hardly any chance.
        """
        return max(FEWEST_REFERENCES, REFERENCES_EACH * self.per_source)

    @property
    def least_bits(self) -> int:
        """``space_bits`` at which half of all codes are left unused, so that drawing them ends."""
        return (self.per_source + self.references - 1).bit_length() + 1


@dataclass(frozen=True)
class Memorization:
    """Measurements of memorization, and the consequence of too much of it."""

    twins: Twins | None = None
    canaries: Canaries | None = None
    max_advantage: float = 0.2
    on_violation: Literal["prune", "stop", "warn"] = "prune"

    @property
    def tested(self) -> bool:
        """Whether anything is measured."""
        return self.twins is not None or self.canaries is not None

    @property
    def metric(self) -> str:
        """The value of each record that is compared, of twins and of canaries alike."""
        return (self.twins or Twins()).metric

    @property
    def alpha(self) -> float:
        """Probability of a false verdict over the whole search, all tests together."""
        return (self.twins or Twins()).alpha


@dataclass(frozen=True)
class Requires:
    """Requirements of nodes, and how they must be stated."""

    capabilities: tuple[str, ...] = ()
    statement: Literal["declared", "signed"] = "declared"


@dataclass(frozen=True)
class LedgerRules:
    """``anchor``: what also gets the ledger's head: ``file:DIR``, ``syslog``, ``command:…``."""

    segment_records: int = 1000
    anchor: tuple[str, ...] = ()


@dataclass(frozen=True)
class Changes:
    """Approvals, by keys of role ``policy``, that a change of the policy needs.

    Attributes:
        revoke: what becomes of a source whose agreement has ended, or that is withdrawn: training
            goes on without it, or stops.
    """

    tighten_approvals: int = 0
    loosen_approvals: int = 1
    revoke: Literal["drop", "stop"] = "drop"


@dataclass(frozen=True)
class CompiledPolicy:
    """A policy with its sources and layers in order, and the weight of each in each.

    Attributes:
        text_digest: of the policy's text, ``sha256:…``.
        normalize: ``per_layer``: a layer's gradient is the mean over what it admits; ``global``:
            over the whole batch.
        unknown_source: what becomes of records of a source that is not listed.
        mixed: what becomes of a record of several sources.
        layers: in the order of the text.
        sources: in the order of their names, which gives them their codes.
        matrix: weights, one row per source, one column per layer.
        probe_every: batches between two probes of the live model; 0: the first step only.
        ablation: whether a control may be trained without routing.
        ablates: the experiment of which this is the control; "" if it is none.
    """

    name: str
    version: int
    text_digest: str
    layers: tuple[LayerGroup, ...]
    sources: tuple[DataSource, ...]
    matrix: tuple[tuple[float, ...], ...]
    assurance: Assurance = "state_clean"
    normalize: Literal["per_layer", "global"] = "per_layer"
    unknown_source: Literal["deny", "drop"] = "deny"
    mixed: Literal["min", "reject"] = "min"
    trust: tuple[TrustedKey, ...] = ()
    coverage: Coverage = Coverage()
    entropy: Entropy = dataclasses.field(default_factory=Entropy)
    memorization: Memorization | None = None
    requires: Requires = Requires()
    ledger: LedgerRules = LedgerRules()
    changes: Changes = Changes()
    probe_every: int = 500
    ablation: Literal["refused", "allowed"] = "refused"
    ablates: str = ""

    def __post_init__(self) -> None:
        """Refuse what no compiler makes.

        Raises:
            ValueError: sources are not in order, or the weights are not S x L numbers in [0, 1].
        """
        names = [one.id for one in self.sources]
        if not names or names != sorted(set(names)):
            raise ValueError("sources are not in the order of their names, each once")
        if not self.layers or len({one.id for one in self.layers}) < len(self.layers):
            raise ValueError("layers have not each a name of their own")
        rows = [len(row) for row in self.matrix]
        if rows != [len(self.layers)] * len(names):
            raise ValueError("weights are not one per source and layer")
        if not all(math.isfinite(w) and 0 <= w <= 1 for row in self.matrix for w in row):
            raise ValueError("a weight is not a number from 0 to 1")
        if (self.assurance == "none") != bool(self.ablates):
            raise ValueError("the control of an ablation, and nothing else, assures none")
        for one in self.layers:
            re.compile(one.match)

    @property
    def codes(self) -> dict[str, int]:
        """The code of each source: its place among the names in order."""
        return {one.id: code for code, one in enumerate(self.sources)}

    @property
    def on_nodes(self) -> Requires:
        """Capabilities that the policy and the agreements on its sources require of nodes."""
        agreed = {name for one in self.sources if one.agreement for name in one.agreement.requires}
        every = tuple(sorted(agreed | set(self.requires.capabilities)))
        return dataclasses.replace(self.requires, capabilities=every)

    def weights(self) -> Matrix:
        """The weights, float64[sources, layers]."""
        import numpy as np

        return np.array(self.matrix, dtype=np.float64)

    def denying(self, sources: Collection[str]) -> CompiledPolicy:
        """The same policy, by which these sources change nothing any more."""
        rows = [
            tuple(0.0 for _ in row) if one.id in sources else row
            for one, row in zip(self.sources, self.matrix, strict=True)
        ]
        return dataclasses.replace(self, matrix=tuple(rows))

    @property
    def digest(self) -> str:
        """Digest of all of it, ``sha256:…``."""
        text = json.dumps(self.encode(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def encode(self) -> dict[str, Any]:
        """The content of ``policy.json``, without its digest; of ablations only where one is."""
        found = {"schema": SCHEMA, **dataclasses.asdict(self)}
        for key, default in (("ablation", "refused"), ("ablates", "")):
            if found[key] == default:
                del found[key]
        return found

    def to_json(self) -> str:
        """The text of ``policy.json``."""
        return json.dumps(self.encode() | {"digest": self.digest}, indent=1, sort_keys=True) + "\n"

    @staticmethod
    def load(path: Path) -> CompiledPolicy:
        """Read a ``policy.json``.

        Raises:
            GovernanceBroken: as ``from_json``, or there is none (G110).
        """
        try:
            text = files.read(path, LARGEST).decode(errors="replace")
        except FileNotFoundError:
            raise GovernanceBroken(
                "G110",
                "the experiment's policy is gone",
                where=str(path),
                hint="put it back from a backup, or fork the experiment",
            ) from None
        return CompiledPolicy.from_json(text, str(path))

    @staticmethod
    def from_json(text: str, where: str = "policy.json") -> CompiledPolicy:
        """The inverse of ``to_json``.

        Raises:
            GovernanceBroken: it is not what was written (G110), or of an unknown version (G101).
        """
        try:
            raw = json.loads(text)
            found = raw.pop("digest", "")
            if raw.pop("schema", "") != SCHEMA:
                raise GovernanceBroken("G101", "its version is unknown", where=where)
            policy = typed_fields.build(CompiledPolicy, raw)
        except (AttributeError, TypeError, ValueError, RecursionError, re.error) as error:
            raise GovernanceBroken("G110", f"it is damaged: {error}", where=where) from None
        if policy.digest != found:
            raise GovernanceBroken(
                "G110",
                "it is not what was written",
                where=where,
                hint="hpcdet writes it once and never changes it: put it back from a backup",
            )
        return policy


@dataclass(frozen=True)
class PolicyText:
    """A policy as people have written it, beside what it compiles to."""

    text: str
    compiled: CompiledPolicy
