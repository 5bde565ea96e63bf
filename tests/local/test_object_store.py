"""An experiment of one real trial, whose worker leaves what is kept in an object store."""

from __future__ import annotations

from pathlib import Path

from hpcdet import checkpoint
from hpcdet.checkpoint.keep import stored_copies
from hpcdet.store.objects import store_place
from hpcdet.store.objects.object_store import ObjectStore
from tests import experiments as x
from tests.object_stores import KEY, SECRET, Bucket, bucket, endpoint  # noqa: F401


def test_the_worker_that_ends_an_experiment_leaves_all_of_it_in_the_store(
    tmp_path: Path,
    bucket: Bucket,  # noqa: F811
) -> None:
    secrets = {"access_key": KEY, "secret_key": SECRET}
    for name, text in secrets.items():  # a job gets no variables of this shell
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    files = {name: {"file": str(tmp_path / name)} for name in secrets}
    values = x.config(8, checkpoint_storage={**bucket.section, **files})
    model = x.write_model(tmp_path / "model")
    with x.local_jobs(tmp_path / "state"):
        paths = x.submit(values, tmp_path / "root", x.local_site(), model)
        assert x.run_to_end(paths).state == "COMPLETED"
        report = f"{paths.id}/report.html"
        x.until(lambda: report in bucket.names(), lambda: x.story(paths))
    assert f"{paths.id}/capsule.tar.gz" in bucket.names()
    [folder] = {key.rpartition("/")[0] for key in bucket.names() if key.endswith("MANIFEST.json")}
    place = store_place.of_url(f"{bucket.place.url}/{folder}", bucket.place)
    stored_copies.get(ObjectStore(place), tmp_path / "mine")
    digest = checkpoint.content_digest(tmp_path / "mine")
    assert digest == x.final_digest(paths, 1)
    for path in paths.root.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
