"""``site.governance``: what is accepted, what is refused and how that is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hpcdet.errors import ConfigError
from hpcdet.site_files import load_site

KEY = "3b" * 32
WHOLE = {
    "capabilities": {
        "enclave_phi": {
            "slurm": {
                "constraint": "gov_phi&gov_net",
                "partition": "phi",
                "account": "lab_phi",
                "qos": "phi",
            },
            "pbs": {"queue": "phi", "account": None, "select": {"gov_phi": True, "gov_net": "yes"}},
        },
        "ledger_anchor": {"slurm": {"constraint": "gov_anchor"}},
    },
    "statement": {"path": "/run/hpcdet/{node}.dsse", "key": KEY, "max_age_s": 3600},
}


def _file(folder: Path, governance: object) -> str:
    path = folder / "enclave.yaml"
    path.write_text(yaml.safe_dump({"extends": "generic-slurm", "governance": governance}))
    return str(path)


def test_it_survives_the_way_into_an_experiment(tmp_path: Path) -> None:
    site = load_site.load(_file(tmp_path, WHOLE))
    resolved = tmp_path / "site.yaml"
    resolved.write_bytes(load_site.dump(site))
    again = load_site.from_resolved(resolved).governance
    assert again == site.governance
    assert again is not None and again.statement is not None
    phi = again.capabilities["enclave_phi"]
    assert phi["slurm"] is not None and phi["slurm"]["constraint"] == "gov_phi&gov_net"
    assert phi["pbs"] is not None and phi["pbs"]["select"] == {"gov_phi": True, "gov_net": "yes"}
    assert again.statement.key == KEY


def test_a_site_without_it_is_written_as_before(tmp_path: Path) -> None:
    site = load_site.load("generic-slurm")
    assert "governance" not in site.plain()
    assert b"governance" not in load_site.dump(site)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"capabilites": {}}, "did you mean 'capabilities'"),
        ({"capabilities": {"Phi": {}}}, "should match pattern"),
        ({"capabilities": {"phi": {"slurm": {"constrain": "a"}}}}, "did you mean 'constraint'"),
        ({"capabilities": {"phi": {"slurm": {"constraint": "a|b"}}}}, "joined by &"),
        ({"capabilities": {"phi": {"slurm": {"constraint": "a*2"}}}}, "joined by &"),
        ({"capabilities": {"phi": {"slurm": {"constraint": "a b"}}}}, "joined by &"),
        ({"capabilities": {"phi": {"slurm": {"partition": "p;rm"}}}}, "should match pattern"),
        ({"statement": {"key": "3b6a"}}, "should match pattern"),
        ({"statement": {"key": KEY.upper()}}, "should match pattern"),
        ({"statement": {"path": "run/node"}}, "absolute path"),
        ({"statement": {"path": "/run/../etc/{node}"}}, "absolute path"),
        ({"statement": {"path": "/run/{host}"}}, "only placeholder"),
        ({"statement": {"max_age_s": float("nan")}}, "finite"),
        ({"statement": {"max_age_s": 0}}, "greater than 0"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, change: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_site.load(_file(tmp_path, change))
    assert says in str(caught.value)
    assert "enclave.yaml:" in caught.value.where and "governance" in caught.value.where
