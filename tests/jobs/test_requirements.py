"""What a policy requires of nodes, as the words that schedulers get, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hpcdet.jobs.script import requirements
from hpcdet.jobs.script.render import render
from hpcdet.jobs.script.requirements import NodeRequest
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import (
    CompiledPolicy,
    DataSource,
    LayerGroup,
    Requires,
    TrustedKey,
    UseAgreement,
)
from hpcdet.schedulers.common.base import NodeGroup
from hpcdet.schedulers.slurm.answers import slurm_features
from hpcdet.site import Site
from hpcdet.site_files import load_site as sites
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved, Slurm
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from tests import governed_nodes
from tests.jobs.test_render import directives

KEY = "3b" * 32
GOVERNANCE = {
    "capabilities": {
        "enclave_phi": {
            "slurm": {"constraint": "gov_phi", "partition": "phi", "account": "lab", "qos": "phi"},
            "pbs": {"queue": "phi", "account": "lab", "select": {"gov_phi": True}},
        },
        "ledger_anchor": {
            "slurm": {"constraint": "gov_anchor&gov_phi"},
            "pbs": {"select": {"gov_anchor": True}},
        },
        "no_egress": {"slurm": {"constraint": "gov_noegress", "partition": "closed"}},
        "unmapped": {"pbs": {"queue": "dark", "select": {"gov_phi": False}}},
    },
    "statement": {"key": KEY},
}
INTENT = Intent(1, "e-1", "hpcdet:e:1-ab", tasks=2, throttle=2, term=1)
BOTH = ("enclave_phi", "ledger_anchor")


def site(**values: Any) -> Site:
    base = sites.load("generic-slurm").plain()
    return Site.model_validate({**base, "python": "py", "governance": GOVERNANCE, **values})


def policy(*capabilities: str, **values: Any) -> CompiledPolicy:
    """A policy of one source and one layer that requires capabilities of nodes."""
    level = values.pop("statement", "declared")
    return CompiledPolicy(
        name="p",
        version=1,
        text_digest="",
        layers=(LayerGroup("all", "."),),
        sources=values.pop("sources", (DataSource("a"),)),
        matrix=((1.0,),),
        requires=Requires(capabilities, level),
        **values,
    )


def experiment(*arguments: str, pool: str | None = None) -> Resolved:
    return Resolved(
        resources=Resources(resource_pool=pool), slurm=Slurm(sbatch_args=list(arguments))
    )


def asked(*arguments: str, pool: str | None = None, at: Site | None = None) -> dict[str, str]:
    """The directives of a job under a policy that requires both capabilities."""
    at = at or site()
    text = render(
        experiment(*arguments, pool=pool),
        at,
        INTENT,
        ExperimentPaths(Path("/scratch/e")),
        {},
        policy=policy(*BOTH),
    )
    found = directives(text)
    return {name: found.get(name, "") for name in ("constraint", "partition", "account", "qos")}


GOLDEN = {"partition": "phi", "account": "lab", "qos": "phi"}


@pytest.mark.parametrize(
    ("arguments", "constraint"),
    [
        ((), "gov_phi&gov_anchor"),
        (("--constraint=a100",), "(a100)&gov_phi&gov_anchor"),
        (("-C a100|h100",), "(a100|h100)&gov_phi&gov_anchor"),
        (("-p phi", "-A lab", "--qos=phi"), "gov_phi&gov_anchor"),
    ],
)
def test_slurm_gets_these_words(arguments: tuple[str, ...], constraint: str) -> None:
    assert asked(*arguments) == {**GOLDEN, "constraint": constraint}


def test_the_sites_own_values_give_way_and_its_constraint_is_kept() -> None:
    at = site(directives={"account": "all", "constraint": "hbm"}, default_partition="gpu")
    assert asked(at=at) == {**GOLDEN, "constraint": "(hbm)&gov_phi&gov_anchor"}
    assert asked(at=site(skip=["constraint", "partition"])) == {
        **GOLDEN,
        "constraint": "gov_phi&gov_anchor",
    }


def governed(paths: ExperimentPaths, under: CompiledPolicy) -> Resolved:
    """An experiment whose folder has the policy."""
    paths.compiled_policy.write_text(under.to_json())
    return governed_nodes.under(experiment(), under)


def test_without_a_policy_scripts_are_as_before(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    plain = render(experiment(), site(), INTENT, paths, {})
    assert "constraint" not in plain and "phi" not in plain
    asks_nothing = governed(paths, policy())
    assert render(asks_nothing, site(), INTENT, paths, {}) == plain


def test_an_experiments_policy_counts_and_a_damaged_one_is_no_policy_less(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    under = governed(paths, policy("ledger_anchor"))
    text = render(under, site(), INTENT, paths, {})
    assert directives(text)["constraint"] == "gov_anchor&gov_phi"
    whole = paths.compiled_policy.read_text()
    for damaged in (whole.replace("ledger_anchor", "no_egress"), policy().to_json(), None):
        if damaged is None:
            paths.compiled_policy.unlink()
        else:
            paths.compiled_policy.write_text(damaged)
        with pytest.raises(GovernanceBroken, match="G110"):
            render(under, site(), INTENT, paths, {})


def test_agreements_on_sources_require_nodes_too() -> None:
    source = DataSource("a", agreement=UseAgreement("DUA-1", requires=("ledger_anchor",)))
    found = requirements.of_policy(policy("enclave_phi", sources=(source,)), site())
    assert found is not None and found.capabilities == BOTH
    assert requirements.of_policy(policy(), site()) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("--partition=gpu",),
        ("-p phi,gpu",),
        ("-A other",),
        ("--account=other",),
        ("-q normal",),
        ("--clusters=other",),
        ("--cluster-constraint=x",),
        ("--constraint=[a100|h100]",),
        ("--constraint=a100*1",),
        ("--constraint=(a100|h100)",),
        ("--constraint=a100,gov_phi",),
        ("--constraint",),
    ],
)
def test_what_would_loosen_it_is_refused(arguments: tuple[str, ...]) -> None:
    required = requirements.of_policy(policy(*BOTH), site())
    assert required is not None
    for attempt in (
        lambda: asked(*arguments),
        lambda: requirements.refuse_undoing(experiment(*arguments), site(), required),
    ):
        with pytest.raises(PolicyRefused, match="P17") as caught:
            attempt()
        assert caught.value.exit_code == 4
        assert caught.value.where and caught.value.hint
    with pytest.raises(PolicyRefused, match="partition=gpu"):
        asked(pool="gpu")
    requirements.refuse_undoing(experiment("--gres=gpu:1", "-C a100", pool="phi"), site(), required)


@pytest.mark.parametrize(
    ("capabilities", "says"),
    [
        (("enclave_xyz",), "has no capability enclave_xyz; it has enclave_phi, ledger_anchor"),
        (("unmapped",), "does not say how Slurm gives nodes with unmapped"),
        (("enclave_phi", "no_egress"), "enclave_phi: phi, no_egress: closed"),
    ],
)
def test_what_the_site_cannot_give_is_refused(capabilities: tuple[str, ...], says: str) -> None:
    with pytest.raises(PolicyRefused) as caught:
        requirements.of_policy(policy(*capabilities), site())
    assert says in str(caught.value) and caught.value.hint


def test_signed_statements_need_a_key_that_the_policy_trusts() -> None:
    wanted = policy("ledger_anchor", statement="signed")
    assert requirements.of_policy(wanted, site()) is not None
    for statement in (None, {"path": "/run/x"}):
        unsigned = site(governance={**GOVERNANCE, "statement": statement})
        with pytest.raises(PolicyRefused, match="no signed statements"):
            requirements.of_policy(wanted, unsigned)
        assert requirements.of_policy(policy("ledger_anchor"), unsigned) is not None
    trusting = dataclasses.replace(wanted, trust=(TrustedKey("s", "site", "77" * 32),))
    with pytest.raises(PolicyRefused, match="does not trust"):
        requirements.of_policy(trusting, site())
    trusting = dataclasses.replace(wanted, trust=(TrustedKey("s", "site", KEY),))
    assert requirements.of_policy(trusting, site()) is not None


SINFO = """\
gpu*|a100|12
gpu*|(null)|2K
phi|gov_phi,a100|3
phi|gov_phi,gov_anchor,a100|2
wide|gov_phi,gov_anchor|1
no row
"""


def test_features_are_read_from_sinfo() -> None:
    assert slurm_features.groups(SINFO)[:3] == [
        NodeGroup("gpu", frozenset({"a100"}), 12, True),
        NodeGroup("gpu", frozenset(), 2048, True),
        NodeGroup("phi", frozenset({"gov_phi", "a100"}), 3),
    ]
    assert len(slurm_features.groups(SINFO)) == 5


def test_what_no_nodes_satisfy_is_refused_with_the_nearest() -> None:
    groups = slurm_features.groups(SINFO)
    request = NodeRequest(BOTH, ("gov_phi", "gov_anchor"))
    requirements.refuse_unsatisfiable(request, "phi", 2, groups)
    requirements.refuse_unsatisfiable(request, "phi,wide", 2, groups)
    with pytest.raises(PolicyRefused) as caught:
        requirements.refuse_unsatisfiable(request, "phi,wide", 3, groups)
    assert "3 nodes with gov_anchor, gov_phi are needed; partition phi,wide has 2" in str(
        caught.value
    )
    with pytest.raises(PolicyRefused) as caught:
        requirements.refuse_unsatisfiable(request, None, 1, groups)
    assert "the default partition has 0" in str(caught.value)
    assert caught.value.hint == (
        "nearest: phi: 2 nodes with all of it; wide: 1 nodes with all of it; "
        "phi: 3 nodes without gov_anchor"
    )
