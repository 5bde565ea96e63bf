"""A job for each partition of a site that the scheduler judges and does not queue."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpcdet.errors import HpcdetError, Unavailable
from hpcdet.jobs.checks import site_lint
from hpcdet.jobs.diagnosis.finding import SiteFinding, skipped
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import Submission, SubmissionRefused
from hpcdet.schedulers.opening import open_scheduler
from hpcdet.site import Site


def findings(site: Site) -> Iterator[SiteFinding]:
    """Yield the scheduler's answer to a small job in each partition of the site file.

    A wrong account, queue, resource or directive is found so. What cannot be rendered, and a
    scheduler that does not answer, are said elsewhere.
    """
    with tempfile.TemporaryDirectory(prefix="hpcdet-check-") as place:
        for partition in site.partitions or (None,):
            script = Path(place) / "job.sh"
            try:
                script.write_text(site_lint.script_of(site, "worker", partition))
                small = Submission("lint-7f3a-1", "hpcdet:lint", script, 1, 1)
                answer = open_scheduler(site).check(small)
            except SubmissionRefused as refused:
                said = f"{_of(partition)} is refused: {refused.refusal.message}"
                wrong = refused.refusal.kind == "invalid"
                yield SiteFinding("error" if wrong else "warning", said, check="partition")
            except Unavailable:
                return
            except HpcdetError:
                continue
            else:
                if answer or not opening.of(site).cluster:
                    what = f"{_of(partition)} would be accepted"
                    yield SiteFinding("ok", what, check="partition")
                else:
                    why = f"{_of(partition)}: {site.scheduler} has no trial submission"
                    yield skipped("partition", why, "hpcdet site check --job submits a job")


def _of(partition: str | None) -> str:
    return f"a job in partition {partition}" if partition else "a job"
