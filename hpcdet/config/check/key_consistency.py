"""Checks across keys: combinations that do not go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcdet.config.check import (
    object_store_keys,
    reproducible_keys,
    search_goals,
    search_methods,
    search_space,
    staged_paths,
)
from hpcdet.config.check.problems import Problem
from hpcdet.space.errors import SpaceError
from hpcdet.space.space import Space
from hpcdet.store.config.bounded_patterns import expression
from hpcdet.store.config.data_secrets import is_secret
from hpcdet.store.config.placement import Fsdp2
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.notify_keys import is_address
from hpcdet.store.config.sections.searcher_keys import (
    COPYING,
    HALVING,
    MODELLED,
    WHOLE,
    Searcher,
    Step,
)
from hpcdet.store.fs import typed_fields
from hpcdet.units import Length

_COMPILE = {"backend": str, "dynamic": bool, "fullgraph": bool, "mode": str}

_DYNAMIC = "bits depend on which shapes an attempt has seen: another one after an interruption"


def errors(config: Resolved) -> Iterator[Problem]:
    """Yield every problem that makes the config impossible."""
    yield from _resources(config)
    yield from _lanes(config)
    yield from _strategy(config)
    yield from _trace(config)
    yield from reproducible_keys.errors(config)
    yield from _searcher(config)
    yield from _log_policies(config)
    yield from search_space.problems(config)
    yield from _data(config.data, "data")
    yield from staged_paths.errors(config.data.get("stage"))
    yield from object_store_keys.errors(config.checkpoint_storage)
    yield from _recipients(config)
    if config.workspace is not None and config.project is None:
        yield Problem("project", "a workspace groups projects", "add project")


def _recipients(config: Resolved) -> Iterator[Problem]:
    for address in config.notify.recipients:
        if not is_address(address):
            what = f"{address!r} is no address"
            yield Problem("notify.email", what, "notify: {email: name@example.org}")


def _log_policies(config: Resolved) -> Iterator[Problem]:
    for number, policy in enumerate(config.log_policies or ()):
        try:
            expression(policy.pattern)
        except ValueError as error:
            yield Problem(f"log_policies.{number}.pattern", str(error), "write a plainer pattern")


def warnings(config: Resolved) -> Iterator[Problem]:
    """Yield everything that looks like a mistake."""
    try:
        doubts = Space(config.hyperparameters).warnings
    except SpaceError:
        doubts = []
    for path, text in doubts:
        yield Problem(search_space.key(path), text)
    for key in ("environment_variables", "cpu_variables", "cuda_variables"):
        for name in filter(is_secret, getattr(config.environment, key)):
            what = "stands in the batch script, which the scheduler keeps; see data.secrets"
            if key != "environment_variables":
                what = "stands in the experiment's config and in each copy of it; see data.secrets"
            yield Problem(f"environment.{key}.{name}", what)
    for name, value in config.data.items():
        if is_secret(name) and isinstance(value, str):
            what = "stands in the experiment's config and in each copy of it; see data.secrets"
            yield Problem(f"data.{name}", what)
    yield from object_store_keys.warnings(config.checkpoint_storage)
    yield from _ladders(config)
    yield from _ends_early(config.searcher)
    for key in ("min_validation_period", "min_checkpoint_period"):
        period: Length = getattr(config, key)
        length = config.searcher.max_length
        if length and period.unit == length.unit and period.value > length.value:
            yield Problem(key, f"{period} is longer than the whole training of {length}")
    yield from _without_effect(config)


def _without_effect(config: Resolved) -> Iterator[Problem]:
    """Options for large models that have no effect, or another one than expected."""
    wanted, how = config.optimizations, config.distributed
    if wanted.gradient_compression and config.resources.slots_per_trial == 1:
        yield Problem("optimizations.gradient_compression", "one slot sends no gradients")
    if how.fsdp2 != Fsdp2() and how.strategy != "fsdp2":
        yield Problem("distributed.fsdp2", f"has no effect with strategy {how.strategy}")
    if isinstance(wanted.compile, dict) and wanted.compile.get("dynamic") is True:
        yield Problem("optimizations.compile.dynamic", _DYNAMIC)


def _resources(config: Resolved) -> Iterator[Problem]:
    need = config.resources
    slots, nodes = need.slots_per_trial, need.nodes
    if slots % nodes:
        what = f"{slots} ranks cannot be spread evenly over {nodes} nodes"
        yield Problem("resources.slots_per_trial", what, f"make it a multiple of {nodes}")
    elif need.slots_per_node and need.slots_per_node * nodes != slots:
        what = f"{need.slots_per_node} on each of {nodes} nodes are not {slots} slots"
        hint = f"leave it out: it is {slots // nodes}, or change resources.nodes"
        yield Problem("resources.slots_per_node", what, hint)
    yield from _range(config)
    if need.is_single_node and nodes > 1:
        yield Problem("resources.is_single_node", f"resources.nodes is {nodes}", "keep one of them")
    if need.max_slots is not None and need.max_slots < slots:
        what = f"{need.max_slots} slots are not enough for one trial of {slots}"
        yield Problem("resources.max_slots", what)
    size = search_space.least(config.hyperparameters.get("global_batch_size"))
    if size is not None and size < slots:
        what = f"a batch of {size:g} cannot be shared by {slots} ranks"
        yield Problem("hyperparameters.global_batch_size", what, f"at least {slots}")


def _range(config: Resolved) -> Iterator[Problem]:
    """Yield problems of ``min_slots_per_trial``, the fewest slots that a trial accepts."""
    need, key = config.resources, "resources.min_slots_per_trial"
    least, most = need.min_slots_per_trial, need.slots_per_trial
    if least is None:
        return
    each = need.slots_per_node or most // need.nodes
    if least > most:
        yield Problem(key, f"{least} is more than the {most} of slots_per_trial", "swap them")
    elif each and least % each:
        what = f"{least} slots are not whole nodes of {each}"
        yield Problem(key, what, "nodes are granted as wholes: make it a multiple, or add nodes")
    if least < most and config.reproducibility.elastic is None:
        what = "the result would depend on which slots are free"
        yield Problem(key, what, "add reproducibility: {elastic: exact}")


def _lanes(config: Resolved) -> Iterator[Problem]:
    alone = config.worker.mode == "per_trial"
    if config.worker.node_groups > 1 and (alone or config.resources.min_slots_per_trial):
        what = "a worker that takes one trial has no use for several groups of nodes"
        if not alone:
            what = "groups of nodes have one size, and trials with min_slots_per_trial have several"
        yield Problem("worker.node_groups", what, "leave it out")
    if config.worker.lanes == 1:
        return
    if config.resources.nodes > 1:
        what = f"lanes share one node, and a trial needs {config.resources.nodes} of them"
        yield Problem("worker.lanes", what, "leave it out, or make resources.nodes 1")
    if alone:
        what = "a worker that takes one trial has no use for several lanes"
        yield Problem("worker.lanes", what, "leave it out, or make worker.mode shared")


def _strategy(config: Resolved) -> Iterator[Problem]:
    wanted, slots = config.optimizations, config.resources.slots_per_trial
    if config.distributed.strategy == "fsdp2":
        if slots == 1:
            what = "fsdp2 shards a model over ranks, and a trial has one"
            yield Problem(
                "distributed.strategy", what, "use ddp, or more resources.slots_per_trial"
            )
        if wanted.gradient_compression:
            what = "this option belongs to DDP, and distributed.strategy is fsdp2"
            hint = "use distributed.fsdp2.reduce_dtype"
            yield Problem("optimizations.gradient_compression", what, hint)
    options = wanted.compile if isinstance(wanted.compile, dict) else {}
    for name, value in options.items():
        if name not in _COMPILE:
            what = f"torch.compile has no option {name!r}"
            yield Problem("optimizations.compile", what, f"there are: {', '.join(_COMPILE)}")
        elif not isinstance(value, _COMPILE[name]):
            expected = "true or false" if _COMPILE[name] is bool else "text"
            yield Problem(f"optimizations.compile.{name}", f"expected {expected}, got {value!r}")
    if options.get("dynamic") is True and config.reproducibility.deterministic:
        hint = "leave it out, or reproducibility.deterministic"
        yield Problem("optimizations.compile.dynamic", _DYNAMIC, hint)


def _trace(config: Resolved) -> Iterator[Problem]:
    first, last = config.profiling.begin_on_batch, config.profiling.end_after_batch
    if last is not None and last < first:
        what = f"the last batch to record, {last}, comes before the first, {first}"
        hint = "batches are counted over the whole trial, from 0; null records 20 of them"
        yield Problem("profiling.end_after_batch", what, hint)


def _data(value: Any, key: str) -> Iterator[Problem]:
    """Refuse ``data`` that YAML (as kept) or JSON (as shown) cannot represent."""
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            if not isinstance(name, str | int):
                yield Problem(key, f"the key {name!r} is not text", "put it in quotes")
            yield from _data(item, f"{key}.{name}")
    elif not isinstance(value, str | int | float | None):
        yield Problem(key, f"a {type(value).__name__} cannot be kept", "write it as text")


def _searcher(config: Resolved) -> Iterator[Problem]:
    asked = config.searcher
    counted = (set(HALVING) | {"random", "custom"}) - {"hyperband", "bohb"}
    if asked.name in counted and not asked.max_trials:
        what = "'max_trials' is missing: how many samples to try"
        yield Problem("searcher.max_trials", what, "max_trials: 16")
    if asked.name == "single" and asked.max_trials not in (0, 1):
        what = "a single search has one trial"
        yield Problem("searcher.max_trials", what, "leave it out, or use name: random")
    if asked.max_length is not None and asked.max_length.value == 0:
        yield Problem("searcher.max_length", "the length must be positive")
    yield from search_methods.problems(asked)
    yield from _halving(asked)
    yield from _population(asked)
    yield from _schedule(asked)
    yield from _stopping(asked)
    yield from _sampler(asked)
    yield from search_goals.problems(asked, config.governance is not None)
    if asked.max_length is None and is_class(config.entrypoint):
        hint = "max_length: {batches: 1000}"
        yield Problem("searcher.max_length", "'max_length' is missing: how long to train", hint)


def _population(asked: Searcher) -> Iterator[Problem]:
    if asked.name not in COPYING:
        return
    key, length = "searcher.perturbation_interval", asked.max_length
    if asked.population_size is None:
        what = "'population_size' is missing: how many trials are trained and copied"
        yield Problem("searcher.population_size", what, "population_size: 8")
    elif asked.max_trials not in (0, asked.population_size):
        what = "population_size says how many trials there are, and copies are made of them"
        yield Problem("searcher.max_trials", what, "leave it out")
    if length is None:
        what = "'max_length' is missing: how long a trial and its heirs train"
        yield Problem("searcher.max_length", what, "max_length: {batches: 1000}")
        return
    interval = asked.perturbation_interval
    if interval is not None and interval.unit != length.unit:
        what = f"{interval} cannot be compared with {length}"
        yield Problem(key, what, f"write it in {length.unit}")
    elif interval is not None and not 0 < interval.value < length.value:
        yield Problem(key, f"{interval} does not divide {length}", f"less than {length.value}")


def _schedule(asked: Searcher) -> Iterator[Problem]:
    key, steps = "searcher.schedule.steps", _steps(asked)
    if asked.name != "schedule":
        return
    if not steps:
        what = "'steps' is missing: which hyperparameters until which length"
        yield Problem(key, what, "hpcdet schedule ID --config writes them")
    elif asked.max_trials not in (0, len(steps)):
        what = f"there is a trial for each of the {len(steps)} steps"
        yield Problem("searcher.max_trials", what, "leave it out")
    for number, step in enumerate(steps):
        at, until, whole = f"{key}.{number}.until", step.until, asked.max_length or step.until
        before = steps[number - 1].until if number else Length(until.unit, 0)
        if until.unit != whole.unit:
            what = f"{until} cannot be compared with {whole}"
            yield Problem(at, what, f"write it in {whole.unit}")
        elif until.unit != before.unit or until.value <= before.value:
            what = f"{until} is not beyond {before}"
            yield Problem(
                at, what, "each step continues where the one before ends, to a greater length"
            )
        elif until.value > whole.value:
            what = f"{until} is beyond the whole training of {whole}"
            yield Problem(at, what, f"at most {whole.value}, or a greater searcher.max_length")


def _steps(asked: Searcher) -> list[Step]:
    return [typed_fields.build(Step, one) for one in asked.schedule.steps]


def _ends_early(asked: Searcher) -> Iterator[Problem]:
    """Yield a schedule that ends early, as that of a trial that did not train in full does."""
    steps, whole = _steps(asked), asked.max_length
    if asked.name == "schedule" and steps and whole and steps[-1].until.value < whole.value:
        key = f"searcher.schedule.steps.{len(steps) - 1}.until"
        yield Problem(key, f"the training ends at {steps[-1].until}, short of {whole}")


def _stopping(asked: Searcher) -> Iterator[Problem]:
    unit = asked.max_length.unit if asked.max_length else "batches"  # of the lengths in reports
    for name, keys in asked.stopping.items():
        for key, plain in keys.items():
            if not isinstance(plain, dict):  # all maps in it are lengths
                continue
            value, where = Length.decode(plain), f"searcher.stopping.{name}.{key}"
            if key == "interval" and not value.value:
                yield Problem(where, "an interval of length 0", "leave it out")
            if value.value and value.unit != unit:
                what = f"{value} cannot be compared with the {unit} that trials are measured in"
                yield Problem(where, what, f"write it in {unit}")
    limits, key = asked.stopping.get("threshold"), "searcher.stopping.threshold"
    lower, upper = (limits["lower"], limits["upper"]) if limits else (None, None)
    if limits and lower is None and upper is None:
        yield Problem(key, "neither lower nor upper is there", "upper: 10")
    elif lower is not None and upper is not None and lower >= upper:
        what = f"nothing lies between {lower:g} and {upper:g}"
        yield Problem(key, what, "lower: the smaller one")


_UNMODELLED = ("single", "random", "grid", *COPYING, "schedule", "custom")
"""Searchers with a way of their own to hyperparameters."""


def _sampler(asked: Searcher) -> Iterator[Problem]:
    wanted = asked.sampler
    name = wanted.name or MODELLED.get(asked.name, "random")
    if wanted.name is not None and asked.name in _UNMODELLED:
        what = f"a search of name: {asked.name} needs no sampler"
        yield Problem("searcher.sampler.name", what, "leave it out, or use name: bayesian")
    elif wanted.name == "random" and asked.name in MODELLED:
        what = f"{asked.name} is a search by a model"
        hint = f"tpe or gp, or use name: {'random' if asked.name in WHOLE else 'hyperband'}"
        yield Problem("searcher.sampler.name", what, hint)
    for key in ("startup", "random_fraction"):
        if getattr(wanted, key) is not None and name == "random":
            what = "the key has no effect where hyperparameters are drawn at random"
            yield Problem(f"searcher.sampler.{key}", what, "add sampler.name: tpe, or leave it out")
    if asked.name == "nsga2" and wanted.name not in (None, "nsga2"):
        what = f"nsga2 with the sampler {wanted.name}"
        yield Problem("searcher.sampler.name", what, "leave it out, or use name: bayesian")
    if wanted.population_size is not None and name != "nsga2":
        key = "searcher.sampler.population_size"
        yield Problem(key, "only nsga2 has a population", "add sampler.name: nsga2")


def _halving(asked: Searcher) -> Iterator[Problem]:
    if asked.name == "custom" and not asked.program:
        what = "'program' is missing: the code that searches"
        yield Problem("searcher.program", what, "program: my_search:MySearcher")
    if asked.name not in HALVING:
        return
    if asked.time_metric is None and asked.max_length is None:
        what = "'max_length' is missing: where trials are compared follows from it"
        yield Problem("searcher.max_length", what, "max_length: {batches: 1000}")
    if asked.time_metric is not None and asked.max_time is None:
        yield Problem("searcher.time_metric", "'max_time' is missing", "max_time: 900")


def _ladders(config: Resolved) -> Iterator[Problem]:
    """Yield rungs that coincide, and brackets that get no trial."""
    asked = config.searcher
    if asked.name not in HALVING or asked.top is None or not asked.brackets:
        return
    deepest = max(len(bracket.rungs) for bracket in asked.brackets)
    wanted = asked.num_rungs or max(asked.bracket_rungs, default=0)
    if wanted > deepest:
        key = "searcher.num_rungs" if asked.num_rungs else "searcher.bracket_rungs"
        what = f"{wanted} rungs of {asked.top} divided by {asked.divisor:g} are {deepest}"
        yield Problem(key, f"{what} different ones: {asked.brackets[0].rungs}")
    elif len(set(asked.bracket_rungs)) > len(asked.brackets):
        what = f"{asked.max_trials} trials are enough for {len(asked.brackets)} of the brackets"
        yield Problem("searcher.bracket_rungs", what)


def is_class(entrypoint: str | list[str]) -> bool:
    """True for ``module:Class``, which has no training loop of its own that decides the length."""
    if not isinstance(entrypoint, str):
        return False
    module, colon, name = entrypoint.partition(":")
    return bool(colon) and name.isidentifier() and module.replace(".", "").isidentifier()
