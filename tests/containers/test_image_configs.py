"""Configs with images: what is accepted, what is refused before anything is queued."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from hpcdet.config import api as config
from hpcdet.containers import image_files
from hpcdet.errors import ConfigError
from hpcdet.jobs.checks import idle_keys
from hpcdet.jobs.create import image_checks, images
from hpcdet.jobs.script import contained, interpreters
from hpcdet.jobs.script.launch import launch
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.site import Site
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.trials import staged_data
from tests import disks
from tests import experiments as x

CONTAINER = {"kind": "apptainer", "binds": ["$DISK/lib:/lib2:ro"]}


def loaded(folder: Path, *ignored: str, **values: object) -> config.LoadedConfig:
    file = folder / "config.yaml"
    base = {
        "entrypoint": "model_def:Model",
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
    }
    file.write_text(yaml.safe_dump({**base, **values}))
    return config.load(file, ignored=ignored)


def refused(made: config.LoadedConfig, site: Site, root: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        image_checks.refuse_unusable(made.config, site, site.view(), root)
    return caught.value


def test_what_cannot_run_is_refused_with_its_repair(tmp_path: Path) -> None:
    image = tmp_path / "torch.sif"
    made = loaded(tmp_path, environment={"image": str(image)})
    assert "--ignore environment.image" in refused(made, x.local_site(), tmp_path).hint
    site = x.local_site(container=CONTAINER)
    assert "there is no image" in refused(made, site, tmp_path).what
    image.write_text("an image")
    image_checks.refuse_unusable(made.config, site, site.view(), tmp_path)
    pyxis = x.local_site(container={"kind": "pyxis"})
    assert "starts no containers" in refused(made, pyxis, tmp_path).what
    by_name = loaded(tmp_path, environment={"image": "docker://python:3.12"})
    assert "images: FOLDER" in refused(by_name, site, tmp_path).hint
    mounts = [{"host_path": "/not/there", "container_path": "/data"}]
    bound = loaded(tmp_path, environment={"image": str(image)}, bind_mounts=mounts)
    assert "/not/there is not there" in refused(bound, site, tmp_path).what
    staged = loaded(tmp_path, data={"stage": [str(image)]})
    assert "local: $TMPDIR" in refused(staged, x.local_site(), tmp_path).hint
    gone = loaded(tmp_path, data={"stage": ["/not/there"]})
    disk = x.local_site(paths={"local": str(tmp_path)})
    assert "/not/there is not there" in refused(gone, disk, tmp_path).what


def test_images_by_accelerator(tmp_path: Path) -> None:
    for name in ("a.sif", "b.sif"):
        (tmp_path / name).write_text(name)
    both = {"cpu": f"{tmp_path}/a.sif", "gpu": f"{tmp_path}/b.sif", "rocm": None}
    made = loaded(tmp_path, environment={"image": both}).config
    site = x.local_site(container={**CONTAINER, "accelerator": "cuda"})
    image, records = images.resolved(made, site, None)
    assert image == {"cuda": f"{tmp_path}/b.sif"} and list(records) == [f"{tmp_path}/b.sif"]
    found = contained.image(made, site)
    assert found is not None and found.name == f"{tmp_path}/b.sif"
    rocm = x.local_site(container={**CONTAINER, "accelerator": "rocm"})
    with pytest.raises(ConfigError, match="no image for nodes with rocm"):
        contained.image(made, rocm)
    named = loaded(tmp_path, environment={"image": "a.sif"}).config
    kept = x.local_site(container=CONTAINER, paths={"images": str(tmp_path)})
    assert images.resolved(named, kept, None)[0] == f"{tmp_path}/a.sif"


def test_the_digest_is_computed_anew_where_an_image_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "torch.sif"
    file.write_text("one")
    made = loaded(tmp_path, environment={"image": str(file)}).config
    site = x.local_site(container=CONTAINER)
    image, known = contained.image(made, site), images.resolved(made, site, None)[1]
    paths = ExperimentPaths(tmp_path / "exp")
    files.make_folder(paths.root)
    record = {"images": {str(file): {**known[str(file)], "digest": "as recorded"}}}
    files.write_once(paths.provenance, files.canonical(record))
    assert image is not None and contained.digest_now(image, paths) == "as recorded"
    file.write_text("other")
    assert contained.digest_now(image, paths) == image_files.digest(file)
    file.unlink()
    with pytest.raises(ConfigError, match="cannot read the image"):
        contained.digest_now(image, paths)


def test_what_a_rank_sees_and_by_which_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISK", "/disk")
    mounts = [{"host_path": "/a", "container_path": "data", "read_only": True}]
    made = loaded(
        tmp_path,
        environment={"image": "/torch.sif", "python": "/opt/python"},
        bind_mounts=mounts,
    ).config
    site = x.local_site(container=CONTAINER, python="/host/python")
    paths = ExperimentPaths(tmp_path / "exp")
    seen = {bind.target: bind for bind in contained.binds(made, site, paths)}
    assert seen["/lib2"].source == "/disk/lib" and seen["/lib2"].read_only
    assert seen[str(paths.code / "data")].source == "/a" and seen[str(paths.root)]
    assert interpreters.of_ranks(made, site) == "/opt/python"
    assert interpreters.of_jobs(made, site) == "/host/python"
    image = contained.image(made, site)
    assert image is not None
    run = contained.command(image, made, site, paths, ("-c", ""), {"LD_LIBRARY_PATH": "/x"})
    assert run.command[0] == "/usr/bin/env" and "-uLD_LIBRARY_PATH" in run.command
    assert run.command[-4:] == ("/torch.sif", "/opt/python", "-c", "")


def test_an_image_file_is_copied_to_the_disk_of_the_node_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command of each rank, which then is the runtime's, on the copy."""
    (tmp_path / "bin").mkdir()
    runtime = tmp_path / "bin" / "apptainer"
    runtime.write_text(f'#!/bin/sh\nfor word; do echo "$word"; done > {tmp_path}/said.$RANK\n')
    runtime.chmod(0o700)
    image, disk = tmp_path / "torch.sif", tmp_path / "disk"
    image.write_text("an image")
    disk.mkdir()
    made = loaded(tmp_path, environment={"image": str(image)}).config
    kind = {**CONTAINER, "stage": True}
    site = x.local_site(container=kind, python=sys.executable, paths={"local": str(disk)})
    attempt = ExperimentPaths(tmp_path / "exp").trial(1).attempt(1)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    allocation = Allocation("7", ("n1",))
    plan = launch(made, site, ExperimentPaths(tmp_path / "exp"), attempt, allocation)
    for rank in ("0", "1"):
        subprocess.run(plan.argv, env={**plan.environment, "RANK": rank}, check=True)
        words = (tmp_path / f"said.{rank}").read_text().split()
        [copy] = [word for word in words if word.endswith("/torch.sif")]
        assert Path(copy).is_relative_to(disk) and Path(copy).read_text() == "an image"
    assert len(list(disk.glob("hpcdet-*/data-*.lock"))) == 1
    staged_data.remove(str(disk))
    assert not list(disk.glob("hpcdet-*/*")), "nobody holds it any more"
    for text in ("a newer one", "the newest"):  # and what a rank says of its image is what it has
        image.write_text(text)
        plan = launch(made, site, ExperimentPaths(tmp_path / "exp"), attempt, allocation)
        subprocess.run(plan.argv, env={**plan.environment, "RANK": "3"}, check=True)
        [copy] = [w for w in (tmp_path / "said.3").read_text().split() if w.endswith("/torch.sif")]
        assert Path(copy).read_text() == text
    staged_data.remove(str(disk))
    image.write_text("one that came between")
    other = subprocess.run(plan.argv, env={**plan.environment, "RANK": "3"}, capture_output=True)
    assert other.returncode == 9 and b"it is another image than sha256:" in other.stderr
    # with a full disk, the image is used where it is
    with disks.small_disk(tmp_path / "small", megabytes=1) as why_not:
        if not why_not:
            image.write_bytes(b"x" * 2**21)
            plan = launch(made, site, ExperimentPaths(tmp_path / "exp"), attempt, allocation)
            there = {**plan.environment, staged_data.PLACE: str(tmp_path / "small"), "RANK": "2"}
            done = subprocess.run(plan.argv, env=there, check=True, capture_output=True, text=True)
            assert "container.stage: no copies on" in done.stderr
            words = (tmp_path / "said.2").read_text().split()
            [link] = [word for word in words if word.endswith("/torch.sif")]
            assert Path(link).resolve() == image
    image.unlink()
    gone = subprocess.run(plan.argv, env=dict(plan.environment), capture_output=True, text=True)
    assert gone.returncode == 4 and f"container.stage: {image} is not there" in gone.stderr


def test_only_files_are_copied_to_nodes_and_only_where_the_site_has_a_disk(tmp_path: Path) -> None:
    made = loaded(tmp_path, environment={"image": str(tmp_path)}).config
    site = x.local_site(container={**CONTAINER, "stage": True}, paths={"local": str(tmp_path)})
    assert not contained.is_staged(contained.image(made, site)), "a folder is used where it is"
    (image := tmp_path / "torch.sif").touch()
    staged = loaded(tmp_path, environment={"image": str(image)}).config
    found = contained.image(staged, site)
    assert found is not None and contained.is_staged(found)
    paths, inherited = ExperimentPaths(tmp_path / "exp"), {staged_data.PLACE: str(tmp_path)}
    run = contained.command(found, staged, site, paths, ["-c", ""], inherited)
    assert "hpcdet.containers.node_copy" not in run.command, "another attempt's disk says nothing"
    no_disk = x.local_site(container={**CONTAINER, "stage": True})
    assert "container.stage means nothing without paths.local" in idle_keys.idle(no_disk)[0]
    with pytest.raises(ValidationError, match="images of podman-hpc are no files"):
        x.local_site(container={"kind": "podman-hpc", "stage": True})


def test_configs_that_are_wrong_or_mean_nothing(tmp_path: Path) -> None:
    user = {"username": "ann", "password": {"env": "TOKEN"}}
    made = loaded(tmp_path, environment={"image": "a/b", "registry_auth": user})
    assert made.registry is not None and made.registry.username == "ann"
    assert "registry_auth" not in made.resolved()["environment"]
    with pytest.raises(ConfigError, match="TOKEN is not set"):
        made.registry.secret()
    literal = {"username": "ann", "password": "very-secret"}
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, environment={"image": "a/b", "registry_auth": literal})
    assert "a reference" in str(caught.value) and "very-secret" not in str(caught.value)
    for image in ({"tpu": "x"}, " ", "two words"):
        with pytest.raises(ConfigError, match=r"environment\.image"):
            loaded(tmp_path, environment={"image": image})
    for stage in ("/a", ["relative"], ["/a/x", "/b/x"], [3]):
        with pytest.raises(ConfigError, match=r"data\.stage"):
            loaded(tmp_path, data={"stage": stage})
    alone = loaded(tmp_path, environment={"registry_auth": user, "force_pull_image": True})
    assert sum("there is no environment.image" in said for said in alone.warnings) == 2
    here = loaded(tmp_path, "environment.image", environment={"image": "a/b"})
    assert here.config.environment.image is None and "on the host" in here.warnings[0]
