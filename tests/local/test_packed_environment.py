"""The recipe of docs/guides/sites-storage.md: an environment that each node unpacks for itself."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from tests import TOP
from tests import experiments as x

GUIDE = TOP / "docs" / "guides" / "sites-storage.md"


def recipe(node: Path, project: Path) -> dict[str, object]:
    """The site's keys as the page has them, with folders of this test."""
    section = GUIDE.read_text().split("## An environment on the nodes' own disks", 1)[1]
    text = section.split("```yaml", 1)[1].split("```", 1)[0]
    text = text.replace("/local/ada", str(node)).replace("/project/ada", str(project))
    keys: dict[str, object] = yaml.safe_load(text.replace("srun --ntasks-per-node=1 ", ""))
    assert keys.pop("extends")
    return keys


def pack(project: Path) -> None:
    """An environment with the packages of this one; it is gone where it was made."""
    made = project / "env-1"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    [packages] = made.glob("lib/python*/site-packages")
    (packages / "all.pth").write_text(f"{sysconfig.get_path('purelib')}\n{TOP}\n")
    subprocess.run(["tar", "-C", project, "-cf", project / "env-1.tar", "env-1"], check=True)
    subprocess.run(["rm", "-r", made], check=True)


@pytest.mark.parametrize("before", ["nothing", "unpacked"])
def test_ranks_run_from_the_nodes_disk(tmp_path: Path, before: str) -> None:
    node, project = tmp_path / "node", tmp_path / "project"
    project.mkdir()
    pack(project)
    site = x.local_site(**recipe(node, project))
    setup = site.view(None).setup
    if before == "unpacked":
        for _ in range(2):
            subprocess.run(["bash", "-ec", "\n".join(setup)], check=True)
        (project / "env-1.tar").unlink()
    model = x.write_model(tmp_path / "model")
    code = model / "model_def.py"
    says = tmp_path / "prefix"
    code.write_text(f"import sys\nopen({str(says)!r}, 'w').write(sys.prefix)\n{code.read_text()}")
    with x.local_jobs(tmp_path / "state"):
        paths = x.submit(x.config(2), tmp_path / "EXP", site, model)
        assert x.run_to_end(paths).state == "COMPLETED", x.story(paths)
    assert says.read_text() == str(node / "env-1")
    assert sorted(one.name for one in node.iterdir()) == ["env-1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder away")
def test_what_another_user_has_put_there_ends_the_job(tmp_path: Path) -> None:
    node = tmp_path / "node"
    (node / "env-1").mkdir(parents=True)
    setup = x.local_site(**recipe(node, tmp_path)).view(None).setup
    codes = []
    for owner in (0, 65534):
        os.chown(node, owner, owner)
        codes.append(subprocess.run(["bash", "-c", "\n".join([*setup, "exit 7"])]).returncode)
    assert codes == [7, 1]
