"""Command lines of container runtimes, and how images are fetched by (fake) ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdet.containers import fetching, image_files, opening
from hpcdet.containers.runtime import Bind, ContainerRequest, RegistryLogin, registry
from hpcdet.errors import ConfigError
from hpcdet.site import Container

REQUEST = ContainerRequest(
    image="/images/torch.sif",
    command=("python3", "-Pm", "hpcdet.attempt", "/scratch/exp"),
    folder="/scratch/exp/code",
    binds=(Bind("/scratch/exp", "/scratch/exp"), Bind("/opt/licence", "/licence", True)),
    args=("--more",),
    accelerator="cuda",
    ranks=("RANK", "PMIX_*", "PMIX[0-9]*"),
    environ=("SEED",),
    option="environment",
)
RENDERED = {
    "apptainer": (
        "apptainer exec --pwd /scratch/exp/code --bind /scratch/exp:/scratch/exp "
        "--bind /opt/licence:/licence:ro --nv --more /images/torch.sif "
        "python3 -Pm hpcdet.attempt /scratch/exp",
        "",
    ),
    "charliecloud": (
        "ch-run --cd /scratch/exp/code --bind=/opt/licence:/licence "
        "--bind=/scratch/exp:/scratch/exp --more /images/torch.sif -- "
        "python3 -Pm hpcdet.attempt /scratch/exp",
        "",
    ),
    "podman-hpc": (
        "podman-hpc run --rm --network=host --pid=host --ipc=host --userns=keep-id "
        "--workdir /scratch/exp/code --volume /scratch/exp:/scratch/exp "
        "--volume /opt/licence:/licence:ro --env PMIX_* --env RANK --env SEED --gpu --more "
        "/images/torch.sif python3 -Pm hpcdet.attempt /scratch/exp",
        "",
    ),
    "pyxis": (
        "python3 -Pm hpcdet.attempt /scratch/exp",
        "--container-image=/images/torch.sif "
        "--container-mounts=/scratch/exp:/scratch/exp,/opt/licence:/licence:ro "
        "--container-workdir=/scratch/exp/code --more",
    ),
    "option": (
        "python3 -Pm hpcdet.attempt /scratch/exp",
        "--environment=/images/torch.sif --more",
    ),
}


def container(kind: str) -> Container:
    option = "environment" if kind == "option" else None
    return Container.model_validate({"kind": kind, "option": option})


@pytest.mark.parametrize("kind", RENDERED)
def test_the_command_of_a_rank_in_each_runtime(kind: str) -> None:
    made = opening.runtime(container(kind)).contained(REQUEST)
    assert (" ".join(made.command), " ".join(made.step_args)) == RENDERED[kind]


def test_charliecloud_shows_the_nearest_empty_folder_and_says_which_is_missing(
    tmp_path: Path,
) -> None:
    runtime = opening.runtime(container("charliecloud"))
    for name in ("srv", "usr/lib", "proc"):
        (tmp_path / name).mkdir(parents=True)
    near = Bind("/srv/ann/exp", "/srv/ann/exp")
    assert runtime.unfit(tmp_path, (near,)) == ("", "")
    request = ContainerRequest(str(tmp_path), ("true",), "/", (near, Bind("/tmp/x", "/tmp/x")))
    assert "--bind=/srv:/srv" in runtime.contained(request).command
    assert not any("/tmp/x" in word for word in runtime.contained(request).command)
    (tmp_path / "usr/lib/libc.so").touch()  # what is in use is not hidden
    assert "mkdir -p" in runtime.unfit(tmp_path, (Bind("/usr/lib/exp", "/usr/lib/exp"),))[1]
    what, hint = runtime.unfit(tmp_path, (Bind("/scratch/exp", "/scratch/exp"),))
    assert "has no folder /scratch/exp" in what and hint == f"mkdir -p {tmp_path}/scratch/exp"
    assert runtime.unfit(tmp_path, (Bind("/a", "/a", optional=True),)) == ("", "")
    assert "reading only" in runtime.unfit(tmp_path, (Bind("/a", "/srv", True),))[0]


def test_registries_of_references() -> None:
    assert registry("docker://python:3.12") == registry("user/image") == "docker.io"
    assert registry("localhost/x") == "localhost"
    assert registry("docker://registry.test:5000/a/b:c") == "registry.test:5000"


Fake = Callable[[str, str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts a program on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "bin").mkdir()

    def put(name: str, script: str) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o700)

    return put


def test_a_reference_is_fetched_once_and_kept_by_its_digest(tmp_path: Path, fake: Fake) -> None:
    log, images = tmp_path / "log", tmp_path / "images"
    fake("apptainer", f'echo "$* $APPTAINER_DOCKER_PASSWORD" >> {log}; echo "image $3" > "$2"')
    runtime = opening.runtime(container("apptainer"))
    login = RegistryLogin("ann", "secret-word")
    first = fetching.fetched(runtime, "python:3.12", images, login)
    assert first == fetching.fetched(runtime, "python:3.12", images)
    assert first.digest == image_files.digest(Path(first.image))
    assert Path(first.image).name == f"{first.digest.replace(':', '-')}.sif"
    assert len(log.read_text().splitlines()) == 1
    again = fetching.fetched(runtime, "python:3.12", images, again=True)
    assert again.image == first.image and len(log.read_text().splitlines()) == 2
    assert log.read_text().splitlines()[0].endswith("docker://python:3.12 secret-word")
    kept = [path for path in images.rglob("*") if path.is_file()]
    assert not any(b"secret-word" in path.read_bytes() for path in kept)
    assert {path.suffix for path in kept} == {".sif", ".json"}  # nothing half-made


def test_what_a_runtime_says_is_in_the_error(tmp_path: Path, fake: Fake) -> None:
    fake("apptainer", "echo unauthorized >&2; exit 255")
    runtime = opening.runtime(container("apptainer"))
    with pytest.raises(ConfigError, match="ended with 255") as caught:
        fetching.fetched(runtime, "private/image", tmp_path / "images")
    assert "unauthorized" in caught.value.hint
    fake(
        "enroot",
        f'cat "$ENROOT_CONFIG_PATH/.credentials"; echo "$4" > "$3"; echo $4 > {tmp_path}/uri',
    )
    pyxis = opening.runtime(container("pyxis"))
    found = fetching.fetched(
        pyxis, "nvcr.io/nvidia/pytorch:24", tmp_path / "images", RegistryLogin("a", "b")
    )
    assert found.image.endswith(".sqsh")
    assert (tmp_path / "uri").read_text() == "docker://nvcr.io#nvidia/pytorch:24\n"


def test_an_entry_of_a_store_is_known_by_its_id(tmp_path: Path, fake: Fake) -> None:
    fake(
        "podman-hpc",
        '[ "$1" = pull ] && [ -s "$REGISTRY_AUTH_FILE" ] || [ "$1" = image ] && echo 4af2',
    )
    runtime = opening.runtime(container("podman-hpc"))
    found = fetching.fetched(runtime, "a/b:c", tmp_path, RegistryLogin("ann", "word"))
    assert (found.image, found.digest) == ("4af2", "4af2")


def test_the_digest_of_a_folder_is_of_all_that_it_holds(tmp_path: Path) -> None:
    folder = tmp_path / "image"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "tool"
    program.write_text("one")
    seen, stamps = {image_files.digest(folder)}, {image_files.stamp(folder)}
    program.write_text("two")
    seen.add(image_files.digest(folder))
    program.chmod(0o755)
    seen.add(image_files.digest(folder))
    (folder / "bin" / "link").symlink_to("tool")
    seen.add(image_files.digest(folder))
    (folder / "empty").mkdir()
    seen.add(image_files.digest(folder))
    stamps.add(image_files.stamp(folder))
    assert len(seen) == 5 and len(stamps) == 2
    with pytest.raises(FileNotFoundError):
        image_files.digest(tmp_path / "none")
