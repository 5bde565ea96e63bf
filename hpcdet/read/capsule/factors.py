"""The eight factors that the bits of a run depend on, and their comparison then and now."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hpcdet.read.views.items import typed
from hpcdet.store.config import numerics
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.units import Length

Factor = Literal[
    "data", "hyperparameters", "code", "libraries", "seeds", "threads", "determinism", "hardware"
]
FACTORS: tuple[Factor, ...] = get_args(Factor)
"""In the order in which they are restored: the likeliest causes of a difference first."""

SEED = "reproducibility.experiment_seed"
CORES = "cores"
"""The name of the number of cores that a rank may use."""
DRAWN = "drawn by each submission"
"""The value of a seed that the config leaves open."""
_KEYS: tuple[tuple[str, Factor | None], ...] = (
    ("data.paths", None),  # the files are compared: they may lie elsewhere
    ("data.secrets", None),
    ("data", "data"),
    ("hyperparameters", "hyperparameters"),
    (SEED, "seeds"),
    ("searcher.schedule.seed", "seeds"),
    ("searcher.max_concurrent_trials", None),
    ("searcher.wait_at_rungs_s", None),
    ("searcher.answer_within_s", None),
    ("searcher.begin_at", None),
    ("searcher", "hyperparameters"),
    ("optimizations", "hyperparameters"),
    ("min_validation_period", "hyperparameters"),
    ("perform_initial_validation", "hyperparameters"),
    ("governance.digest", "hyperparameters"),
    ("entrypoint", "code"),
    ("compat", "code"),
    ("environment.image", "libraries"),
    ("reproducibility.threads", "threads"),
    ("resources.slots_per_trial", "threads"),
    ("resources.nodes", "threads"),
    ("resources.cpus_per_slot", "threads"),
    ("reproducibility", "determinism"),
    ("distributed", "determinism"),
    ("resources.resource_pool", "hardware"),
)
"""Keys of the config, and those below them; the first that fits counts. Others change no bit."""
_OF_SINGLE = (
    "searcher.name", "searcher.metric", "searcher.max_length", "searcher.time_metric",
    "searcher.max_time", "searcher.begin_from", "searcher.stopping.", "searcher.constraints",
)  # fmt: skip
"""Keys of the search that one trial by itself depends on."""
_VARIABLES = (
    "environment.environment_variables.", "environment.cpu_variables.",
    "environment.cuda_variables.",
)  # fmt: skip
_SHOWN = 6
"""Values that a text has, at most."""


@dataclass(frozen=True)
class FactorView:
    """One factor of a run's bits, then and now."""

    factor: Factor
    """The factor."""
    same: bool | None
    """Whether it is as it was; null where one side is not known."""
    then: str
    """What was recorded of what differs; of all of it where nothing differs."""
    now: str
    """The same of now; the reason, where it is not known."""
    names: list[str]
    """The files, keys and packages that differ."""


@dataclass(frozen=True)
class RunFacts:
    """Values of the factors that a run's bits depend on, at one time.

    Attributes:
        facts: of each factor, values as text by the names of keys, files and packages.
        summaries: of factors whose values are digests: a text that stands for all of them.
        unknown: of factors of which something is not known: what, and why.
        given: names of values that stand in no file: they came from ``--set``.
        settled: names of values that another key leaves without effect.
    """

    facts: Mapping[Factor, Mapping[str, str]]
    summaries: Mapping[Factor, str] = field(default_factory=dict)
    unknown: Mapping[Factor, str] = field(default_factory=dict)
    given: Collection[str] = ()
    settled: Collection[str] = ()

    def of(self, factor: Factor) -> Mapping[str, str]:
        """Return the known values of a factor."""
        return self.facts.get(factor, {})


def compare(then: RunFacts, now: RunFacts) -> list[FactorView]:
    """Return every factor, in the order of ``FACTORS``, with what differs."""
    return [_compared(factor, then, now) for factor in FACTORS]


def _compared(factor: Factor, then: RunFacts, now: RunFacts) -> FactorView:
    before, after = then.of(factor), now.of(factor)
    idle = set(then.settled) & set(now.settled)
    names = [name for name in differing(before, after) if name not in idle]
    unknown = then.unknown.get(factor), now.unknown.get(factor)
    same = False if names else None if any(unknown) else True
    return FactorView(factor, same, _text(then, factor, names), _text(now, factor, names), names)


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names whose values differ, in alphabetical order."""
    names = before.keys() | after.keys()
    return sorted(name for name in names if before.get(name) != after.get(name))


def _text(side: RunFacts, factor: Factor, names: Sequence[str]) -> str:
    """Return what there is to say of one side: of what differs, or of all of it."""
    facts, unknown = side.of(factor), side.unknown.get(factor)
    parts = [one for one in (side.summaries.get(factor), unknown) if one]
    keys = [name for name in names if name in side.given or not side.summaries.get(factor)]
    shown = keys if names else [] if parts else sorted(facts.keys() - set(side.settled))
    said = [
        f"{name}={facts.get(name, '-')}{' (--set)' if name in side.given else ''}"
        for name in shown[:_SHOWN]
    ]
    more = [f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
    return "; ".join([*said, *more, *parts])


def factor_of(key: str) -> Factor | None:
    """Return the factor that a key of the config belongs to; None if no bit depends on it."""
    for above in _VARIABLES:
        if key.startswith(above):
            return factor_of_variable(key.removeprefix(above))
    fits = (factor for above, factor in _KEYS if key == above or key.startswith(f"{above}."))
    return next(fits, None)


def factor_of_variable(name: str) -> Factor:
    """Return the factor of an environment variable; what libraries do not read, code may."""
    if not numerics.variables({name: ""}):
        return "hyperparameters"
    return "threads" if "THREADS" in name else "determinism"


def of_config(
    resolved: Resolved, origins: Mapping[str, str], site_variables: Mapping[str, Any]
) -> dict[Factor, dict[str, str]]:
    """Return the facts that a config states, and those of its site's variables.

    Args:
        origins: where values come from: what came from ``--set`` says so, and a seed that was
            drawn, for a config that is not submitted yet, is no value.
    """
    found: dict[Factor, dict[str, str]] = {factor: {} for factor in FACTORS}
    for name, value in sorted(
        numerics.variables({n: str(v) for n, v in site_variables.items()}).items()
    ):
        found[factor_of_variable(name)][f"${name}"] = value
    single = resolved.searcher.name == "single"
    for key, value in leaves(resolved):
        factor = factor_of(key)
        if factor is None or value is None:
            continue
        if single and key.startswith("searcher.") and not key.startswith(_OF_SINGLE):
            continue
        found[factor][key] = typed(value)
    if origins.get(SEED) == "generated":
        found["seeds"][SEED] = DRAWN
    return found


def settled(resolved: Resolved) -> frozenset[str]:
    """Return the names of values that another key leaves without effect."""
    wanted, found = resolved.reproducibility, set()
    if wanted.threads is not None:
        found |= {CORES, "resources.cpus_per_slot"}
    if wanted.elastic is not None:  # the bits are those of any number of slots
        found |= {"resources.slots_per_trial", "resources.nodes"}
    return frozenset(found)


def given(origins: Mapping[str, str]) -> frozenset[str]:
    """Return the names of values that came from ``--set``."""
    return frozenset(key for key, origin in origins.items() if origin.startswith("--set "))


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and value of every leaf of a config; lists and lengths are leaves."""
    if isinstance(value, Length):
        yield key, str(value)
    elif dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            if one.name != "raw":
                yield from leaves(getattr(value, one.name), f"{key}.{one.name}".lstrip("."))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}".lstrip("."))
    else:
        yield key, value
