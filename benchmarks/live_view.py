"""What pages and answers cost: Chromium until a page is drawn, and the server of the live view."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.builders import Builder
from tests.read.test_report_browser import CHROMIUM, DRIVER, FLAGS
from tests.serve.conftest import Served, serving

_DRAWN = """
window.readyAt = {};
new MutationObserver((seen) => {
  for (const { target } of seen) window.readyAt[target.localName] ??= performance.now();
}).observe(document, { attributes: true, subtree: true, attributeFilter: ["data-ready"] });
"""
_MOST_S = 300
_IDLE_S = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class PageCost:
    """Seconds from the request until the list and all of a page is ready, and of its processor.

    Attributes:
        listed: until ``table[data-ready]``: the list of trials can be sorted and filtered.
        ready: until ``body[data-ready]``: charts are drawn, too.
    """

    listed: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class ServerCost:
    """The server's costs.

    Attributes:
        answers: seconds of each answer, by address.
        memory: its peak, in MB.
        idle: share of a core that it takes while nobody asks.
    """

    answers: dict[str, list[float]]
    memory: float
    idle: float

    def p95(self) -> dict[str, float]:
        """Return, by address, what 95 of 100 answers take at most."""
        return {
            what: statistics.quantiles(found, n=20, method="inclusive")[-1]
            for what, found in self.answers.items()
        }


def browser_is_here() -> bool:
    """True if Chromium and its driver are installed."""
    return bool(CHROMIUM and DRIVER)


def drawn(page: Path, runs: int) -> PageCost:
    """Open a page from its file so often, in one browser, which has opened it once before."""
    cost = PageCost()
    with tempfile.TemporaryDirectory() as home, _browser(Path(home)) as driver:
        for run in range(runs + 1):
            driver.get("about:blank")
            begun = _processor(driver)
            driver.get(page.as_uri())
            ended = time.monotonic() + _MOST_S
            while "body" not in (at := driver.execute_script("return window.readyAt")):
                if time.monotonic() > ended:
                    raise TimeoutError(f"{page} is not drawn after {_MOST_S} s")
                time.sleep(0.05)
            if run:
                cost.listed.append(at["table"] / 1000)
                cost.ready.append(at["body"] / 1000)
                cost.processor.append(_processor(driver) - begun)
    return cost


def _processor(driver: Any) -> float:
    found = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(one["value"] for one in found if one["name"] == "ProcessTime"))


@contextmanager
def _browser(home: Path) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in [*FLAGS, f"--user-data-dir={home / 'profile'}"]:
        options.add_argument(flag)
    service = Service(str(DRIVER), env={**os.environ, "HOME": str(home)})
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_page_load_timeout(_MOST_S)
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _DRAWN})
        driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        yield driver
    finally:
        driver.quit()


def served(root: Path, id: str, cache: Path, times: int) -> ServerCost:
    """Ask a server each address so often, after once before; then let it be idle."""
    one = f"experiments/{id}"
    addresses = {
        "experiments": "experiments?limit=100",
        "an experiment": one,
        "its trials": f"{one}/trials",
        "metrics of a trial": f"{one}/metrics?trial=1&points=500",
        "its events": f"{one}/events?trial=1",
        "its checkpoints": f"{one}/checkpoints",
        "logs of a trial": f"{one}/logs?trial=1",
        "explain": f"{one}/explain?trial=1",
        "explain, all trials": f"{one}/explain",
        "events, all trials": f"{one}/events",
        "metrics of many trials, a piece": f"{one}/metrics",
        "compare": f"compare?ids={id}/1,{id}/2",
        "usage": "usage",
    }
    with serving(root, XDG_CACHE_HOME=str(cache)) as server:
        answers: dict[str, list[float]] = {what: [] for what in addresses}
        for run in range(times + 1):
            for what, address in addresses.items():
                seconds = _asked(server, address)
                if run:
                    answers[what].append(seconds)
        before = _used(server.process.pid)
        time.sleep(_IDLE_S)
        idle = (_used(server.process.pid) - before) / _IDLE_S
        return ServerCost(answers, _peak(server.process.pid), idle)


def news(root: Path) -> list[float]:
    """Seconds by the clock from each of seven metrics being recorded until an open page shows it.

    Each is recorded as soon as the one before is drawn, which is when the page has just asked.
    """
    attempt = Builder(root / "live-0000").trial().attempt()
    found = []
    with (
        tempfile.TemporaryDirectory() as home,
        _browser(Path(home)) as driver,
        serving(root, "--port", "0") as server,
    ):
        token = server.told["token"]
        driver.get(f"http://localhost:{server.told['port']}/e/live-0000?token={token}")
        for eighth in range(8, 0, -1):
            begun = time.monotonic()
            attempt.metrics("validation", 9 - eighth, validation_loss=eighth / 8)
            while not driver.execute_script(_SHOWS, f"{eighth / 8:g}"):
                if time.monotonic() - begun > _MOST_S:
                    raise TimeoutError(f"a metric is not drawn after {_MOST_S} s")
                time.sleep(0.05)
            found.append(time.monotonic() - begun)
    return found[1:]


_SHOWS = """
const numbers = document.querySelector("body[data-ready] #numbers");
return numbers !== null && numbers.textContent.includes(arguments[0]);
"""


def _asked(server: Served, address: str) -> float:
    begun = time.monotonic()
    answer = server.ask(f"/api/v1/{address}")
    assert answer.status == 200, answer.body[:400]
    return time.monotonic() - begun


def _used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _peak(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
