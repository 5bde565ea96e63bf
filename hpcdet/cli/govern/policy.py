"""``policy``: policies checked, compiled, shown and compared; reports have their own module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdet.cli.frame.lazy_commands import LazyCommands
from hpcdet.cli.frame.output import Column, Output, output, table
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import NotFound
from hpcdet.policy.changes.weight_changes import Kind
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.read.views.items import OPTIONAL

if TYPE_CHECKING:  # it brings torch's process and the whole submission
    from hpcdet.cli.govern.model_layers import ModelLayers

_CHECKED = (
    Column("NAME", "name"),
    Column("VERSION", "version", right=True),
    Column("ASSURANCE", "assurance", cut=False),
    Column("SOURCES", lambda row: len(row.sources), right=True),
    Column("LAYERS", lambda row: len(row.layers), right=True),
    Column("PATH", "path"),
    Column("DIGEST", "policy_digest", wide=True),
)
_CHANGED = (
    Column("WHAT", "what", cut=False),
    Column("BEFORE", lambda row: _weight(row.before), right=True),
    Column("AFTER", lambda row: _weight(row.after), right=True),
    Column("KIND", "kind"),
)
_SHIPPED = (
    Column("NAME", "name"),
    Column("ASSURANCE", "assurance", cut=False),
    Column("WHAT", "description", fold=True),
    Column("PATH", "path", wide=True),
)


@dataclass(frozen=True)
class PolicyView:
    """A policy, as it is enforced."""

    path: str
    """Its file; of one that was changed, the record of the change."""
    name: str
    """Its name."""
    version: int
    """Its version."""
    assurance: str
    """What it assures: ``direct``, ``state_clean`` or ``isolated``."""
    policy_digest: str
    """Digest of all that is enforced."""
    sources: list[str]
    """Sources of data, in the order of their names."""
    layers: list[str]
    """Layers, in the order of its text; with ``--model`` those of tied parameters after them."""
    matrix: list[list[float]]
    """A row per source: its weight in each layer, 0 none, 1 all of its gradient."""


@dataclass(frozen=True)
class ParameterView:
    """A parameter that learns."""

    name: str
    """Its name; of a tied one the first."""
    shape: list[int]
    """Its shape."""
    layer: str
    """The layer that it is in."""


@dataclass(frozen=True)
class OperatorView:
    """A module with parameters that learn."""

    module: str
    """Its name in the model."""
    kind: str
    """Its class."""
    how: str
    """``plain``: every source may change it; ``routed``: one backward pass, rows left out where
    they are denied; ``twice``: it runs twice."""


@dataclass(frozen=True)
class CompiledView(PolicyView):
    """A policy, with the layers of a model."""

    parameters: list[ParameterView] | None = field(default=None, metadata=OPTIONAL)
    """Parameters of the model, with ``--model``."""
    operators: list[OperatorView] | None = field(default=None, metadata=OPTIONAL)
    """How its modules are computed, with ``--model``."""


@dataclass(frozen=True)
class PolicyDiffView:
    """A difference between two policies: the weight of a source in a layer, or another rule."""

    what: str
    """``SOURCE in LAYER``, or the dotted key of a rule, such as ``coverage.min``."""
    source: str
    """The source; "" of another rule."""
    layer: str
    """The layer; "" of another rule."""
    before: float | None
    """The weight in the first one; null if that has no such source or layer, and of other rules."""
    after: float | None
    """The weight in the second one."""
    kind: Kind
    """``tighten``, ``loosen``, ``same`` or ``mixed`` (neither more nor less)."""


@dataclass(frozen=True)
class ShippedPolicyView:
    """A policy that hpcdet ships."""

    name: str
    """Its name, for ``governance.policy``."""
    version: int
    """Its version."""
    assurance: str
    """What it assures."""
    sources: list[str]
    """Names that its sources have."""
    layers: list[str]
    """Its layers."""
    description: str
    """What it is for."""
    path: str
    """Its file."""


_ELSEWHERE = {
    "change": "govern.policy_change:change",
    "export": "govern.policy_export:export",
    "impact": "govern.policy_impact:impact",
    "keygen": "govern.policy_signing:keygen",
    "override": "govern.policy_change:override",
    "report": "govern.policy_report:report",
    "reveal": "govern.policy_reveal:reveal",
    "sign": "govern.policy_signing:sign",
}


@click.group(
    "policy",
    commands=LazyCommands(_ELSEWHERE),
    short_help="Check, compare, sign, change and report on policies.",
)
def policy_command() -> None:
    """Policies: which sources of data may change which layers of a model.

    \b
    Example: hpcdet policy show head-only
    """


@policy_command.command("check")
@click.argument("files", nargs=-1, required=True, metavar="FILE|NAME...")
@click.option(
    "--model-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Where manifests and chains are looked for [the folder of FILE].",
)
@output("policy.check", PolicyView)
def check(out: Output, files: Sequence[str], model_dir: Path | None) -> None:
    """Check policy files; exit 4 if one is wrong, with line and repair.

    All that plan and submit refuse of a policy itself is refused here, too. What depends on the
    site they alone can tell, and on the model policy compile --model.

    \b
    Example: hpcdet policy check policy.yaml
    """
    found = [_read(file) for file in files]
    for path, policy in found:
        _refuse_as_submit(policy, model_dir or path.parent)
    out.emit([_view(*one) for one in found], _CHECKED, key="policy_digest")


def _refuse_as_submit(policy: CompiledPolicy, folder: Path) -> None:
    """Refuse what a submission would. Raises ``PolicyRefused``."""
    from hpcdet.config.policy.enforced_keys import refuse_unenforced

    refuse_unenforced(policy)
    if any(one.chain or one.manifest for one in policy.sources):
        from hpcdet.policy.provenance.source_provenance import refuse_incomplete

        refuse_incomplete(policy, folder)


@policy_command.command("compile")
@click.argument("file", metavar="FILE|NAME")
@click.option(
    "--model",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="CONFIG",
    help="Make the model of this config's first trial and say which layer each parameter is in.",
)
@output("policy.compile", CompiledView)
def compile_command(out: Output, file: str, config_file: Path | None) -> None:
    """Compile a policy to one weight per source and layer; exit 4 if it does not fit the model.

    With --model the code runs in a process of its own, as in hpcdet test; nothing trains.

    \b
    Example: hpcdet policy compile policy.yaml --model random.yaml
    """
    path, policy = _read(file)
    if config_file is None:
        item = CompiledView(**vars(_view(path, policy)))
    else:
        from hpcdet.cli.govern import model_layers

        item = _with_model(_view(path, policy), policy, model_layers.of(config_file, path))
    if not out.for_people or out.fields:
        out.emit([item], _CHECKED, key="policy_digest")
        return
    _print(item)
    for each in item.parameters or ():
        click.echo(f"{each.layer}: {each.name} {each.shape}")
    for one in item.operators or ():
        click.echo(f"{one.how}: {one.module or 'the model'} ({one.kind})")


@policy_command.command("show")
@click.argument("what", metavar="EXP|FILE|NAME")
@output("policy.show", PolicyView)
def show(out: Output, what: str) -> None:
    """Show what a policy allows: that of an experiment, of a file, or a shipped one.

    Of an experiment it is the newest: with all changes, which count from the next attempt on.

    \b
    Examples: hpcdet policy show digits-7f3a
              hpcdet policy show head-only -o json
    """
    item = _view(*_either(what))
    if not out.for_people or out.fields:
        out.emit([item], _CHECKED, key="policy_digest")
        return
    _print(item)


@policy_command.command("diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@output("policy.diff", PolicyDiffView)
def diff(out: Output, before: str, after: str) -> None:
    """Compare what two policies allow and demand: experiments, files or shipped ones.

    \b
    Example: hpcdet policy diff digits-7f3a policy.yaml
    """
    from hpcdet.policy.changes import strictness, weight_changes

    was, now = _either(before)[1], _either(after)[1]
    rows = [
        PolicyDiffView(f"{one.source} in {one.layer}", **vars(one), kind=one.kind)
        for one in weight_changes.differences(was, now)
    ]
    rows += [
        PolicyDiffView(one.key, "", "", None, None, one.kind)
        for one in strictness.rule_changes(was, now)
    ]
    out.emit(rows, _CHANGED, key="what", empty="both allow the same")
    if rows and out.for_people:
        settings().note(f"all together: {strictness.together(row.kind for row in rows)}")
        if fixed := strictness.fixed_difference(was, now):
            settings().note(f"{fixed} cannot change while an experiment lives")


@policy_command.command("ls")
@output("policy.ls", ShippedPolicyView)
def ls(out: Output) -> None:
    """List the policies that hpcdet ships.

    \b
    Example: hpcdet policy ls
    """
    from hpcdet.config.policy import policy_text
    from hpcdet.config.policy.policy_file import shipped_policies

    rows = []
    for name, path in shipped_policies().items():
        written, _ = policy_text.read(path.read_text(encoding="utf-8"), str(path))
        found = CompiledNames.of(_read(name)[1])
        what = " ".join(written.description.split())
        assured = written.assurance
        rows.append(
            ShippedPolicyView(
                name, written.version, assured, found.sources, found.layers, what, str(path)
            )
        )
    out.emit(rows, _SHIPPED, key="name")


@dataclass(frozen=True)
class CompiledNames:
    """The names of a policy's sources and layers, in its order."""

    sources: list[str]
    layers: list[str]

    @staticmethod
    def of(policy: CompiledPolicy) -> CompiledNames:
        return CompiledNames([one.id for one in policy.sources], [one.id for one in policy.layers])


def _read(name: str) -> tuple[Path, CompiledPolicy]:
    """The path and the policy of a file or a shipped name. Raises as ``read_policy``."""
    from hpcdet.config.policy.policy_file import find, read_policy

    return find(name), read_policy(name).compiled


def _either(name: str) -> tuple[Path, CompiledPolicy]:
    """The policy of a file, a shipped name or an experiment.

    Raises:
        NotFound: it is nothing of these, or an experiment without a policy.
        GovernanceBroken: an experiment's policy is not the one that was submitted.
    """
    from hpcdet.config.policy.policy_file import shipped_policies
    from hpcdet.policy import named_policy
    from hpcdet.policy.changes import policy_history
    from hpcdet.read.lookup import find
    from hpcdet.store.config import resolved_config

    if name in shipped_policies() or Path(name).is_file():
        return _read(name)
    try:
        paths = find.experiment(name, settings().root)
    except NotFound as error:
        hint = f"a file, an experiment, or one of: {', '.join(shipped_policies())}"
        raise NotFound(error.what, where=error.where, hint=hint) from None
    config = resolved_config.load(paths.config)
    governance = config.governance
    if governance is None:
        named_policy.require(paths, config)
        hint = "its config has no section governance"
        raise NotFound("the experiment has no policy", where=paths.id, hint=hint)
    history = policy_history.load(paths, governance, own=False)
    made = [one.number for one in history.changes if one.act != "override"]
    path = paths.policy_changes / f"{made[-1]:04d}.json" if made else paths.compiled_policy
    return path, history.newest


def _view(path: Path, policy: CompiledPolicy) -> PolicyView:
    names = CompiledNames.of(policy)
    return PolicyView(
        str(path),
        policy.name,
        policy.version,
        policy.assurance,
        policy.digest,
        names.sources,
        names.layers,
        [list(row) for row in policy.matrix],
    )


def _with_model(view: PolicyView, policy: CompiledPolicy, model: ModelLayers) -> CompiledView:
    """A policy's view by the layers of a model: a tied parameter obeys all of its layers."""
    rows = [
        [min(row[place] for place in places) for places in model.groups] for row in policy.matrix
    ]
    return CompiledView(
        **vars(view) | {"layers": model.layers, "matrix": rows},
        parameters=[ParameterView(*one) for one in model.parameters],
        operators=[OperatorView(*one) for one in model.operators],
    )


def _print(view: PolicyView) -> None:
    """Print a policy's table for people, what it assures in large letters."""
    assured = view.assurance.upper().replace("_", " ")
    control = " (ABLATION)" if view.assurance == "none" else ""
    click.echo(f"{view.name}, version {view.version}: {assured}{control}")
    click.echo(view.policy_digest)
    columns = [Column("SOURCE", "")]
    columns += [Column(name, "", right=True, cut=False) for name in view.layers]
    rows = [
        [source, *map(_weight, row)] for source, row in zip(view.sources, view.matrix, strict=True)
    ]
    click.echo(table(columns, rows))


def _weight(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
