"""Why a worker forks no ranks, as ``events`` tells it."""

from __future__ import annotations

from pathlib import Path

from hpcdet.read.views import timeline
from tests import experiments as x


def test_the_reason_for_a_cold_start_is_an_event(tmp_path: Path) -> None:
    values = x.config(worker={"warm": "off"})
    with x.local_jobs(tmp_path / "state"):
        site = x.local_site(python=x.fake_python(tmp_path))
        paths = x.submit(values, tmp_path / "exp", site)
        x.run_to_end(paths)
        found = [event.text for event in timeline.events(paths) if event.kind == "cold"]
    [worker] = paths.root.glob("workers/*")
    assert found == [f"worker {worker.name} starts each rank anew: worker.warm: off"]
