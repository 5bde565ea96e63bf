"""The report in a real Chromium: shown, quiet, inert and readable on any screen."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from hpcdet.read import report
from tests.builders import Builder, sweep

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="chromium and chromium-driver are not installed"
    ),
]

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
]
HOSTILE = "</style></title><script>window.hit=1</script><img src=x onerror=window.hit=1>'\"&{{7*7}}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    home = tmp_path_factory.mktemp("home")
    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in [*FLAGS, f"--user-data-dir={home / 'profile'}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    service = Service(str(DRIVER), env={**os.environ, "HOME": str(home)})
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_page_load_timeout(180)
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def page(browser: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """The browser with logs emptied; what a test emulates is taken back."""
    browser.get("about:blank")
    for kind in ("performance", "browser"):
        browser.get_log(kind)
    yield browser
    for command, parameters in [
        ("Emulation.clearDeviceMetricsOverride", {}),
        ("Emulation.setScriptExecutionDisabled", {"value": False}),
        ("Emulation.setEmulatedMedia", {"features": []}),
    ]:
        browser.execute_cdp_cmd(command, parameters)  # type: ignore[arg-type]


def show(page: webdriver.Chrome, built: Builder) -> str:
    """Open the report; returns its address."""
    address = report.write(built.paths).as_uri()
    page.get(address)
    return address


def requests(page: webdriver.Chrome) -> list[str]:
    found = []
    for entry in page.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.append(message["params"]["request"]["url"])
    return [url for url in found if not url.startswith(("data:", "about:"))]


def ask(page: webdriver.Chrome, expression: str) -> Any:
    return page.execute_script(f"return {expression}")


def test_it_is_shown_without_scripts_network_or_complaint(
    page: webdriver.Chrome, tmp_path: Path
) -> None:
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    address = show(page, sweep(tmp_path / "digits-7f3a"))
    assert requests(page) == [address]
    assert page.get_log("browser") == []
    text = page.find_element(By.TAG_NAME, "body").text
    for words in ("Best validation_loss", "2 (best)", "ValueError: bad batch 1", "preempted"):
        assert words in text
    curves = page.find_elements(By.CSS_SELECTOR, "svg g path.curve")
    assert curves
    for curve in curves:
        assert curve.size["width"] > 100
        assert curve.value_of_css_property("stroke") not in ("none", "")
    assert len(page.find_elements(By.CSS_SELECTOR, "#timeline svg rect.k-lost")) == 3 + 1
    bar = page.find_element(By.CSS_SELECTOR, "svg.bar")
    assert bar.size["width"] > 200
    assert page.find_element(By.CSS_SELECTOR, ".k-lost").value_of_css_property("fill") == (
        "rgb(213, 94, 0)"
    )


def test_hostile_names_are_only_text(page: webdriver.Chrome, tmp_path: Path) -> None:
    built = Builder(
        tmp_path / "x-1",
        name=HOSTILE,
        description=HOSTILE,
        hyperparameters={HOSTILE: 1},
        searcher={"name": "random", "metric": HOSTILE, "max_length": {"batches": 300}},
    )
    trial = built.trial(**{HOSTILE: HOSTILE})
    attempt = trial.attempt()
    attempt.metrics(HOSTILE, 1, **{HOSTILE: 0.5})
    attempt.metrics("validation", 2, **{HOSTILE: 0.25})
    attempt.log(f"Traceback (most recent call last):\n  {HOSTILE}\nValueError: {HOSTILE}\n")
    attempt.end("user_error", error=HOSTILE)
    show(page, built)
    assert ask(page, "window.hit === undefined")
    assert ask(page, "document.querySelectorAll('script, img').length") == 0
    assert page.find_element(By.TAG_NAME, "h1").text.startswith(HOSTILE)
    assert page.find_element(By.TAG_NAME, "body").text.count(HOSTILE) >= 5
    assert page.get_log("browser") == []
    # and if markup slipped through, the policy would stop it
    ask(page, f"document.body.insertAdjacentHTML('beforeend', {json.dumps(HOSTILE)})")
    assert ask(page, "window.hit === undefined")


@pytest.mark.parametrize("width", [320, 1280])
def test_it_fits_the_screen(page: webdriver.Chrome, tmp_path: Path, width: int) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    built.trial(**{"a_hyperparameter_of_a_very_long_name" * 3: "x" * 200})
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False},
    )
    show(page, built)
    assert ask(page, "innerWidth") == width
    assert ask(page, "document.documentElement.scrollWidth") <= width
    for element in page.find_elements(By.CSS_SELECTOR, "details"):
        page.execute_script("arguments[0].open = true", element)
    assert ask(page, "document.documentElement.scrollWidth") <= width


def test_dark_screens_get_a_dark_page(page: webdriver.Chrome, tmp_path: Path) -> None:
    show(page, sweep(tmp_path / "digits-7f3a"))
    colour = "getComputedStyle(document.body).backgroundColor"
    light = ask(page, colour)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    assert (light, ask(page, colour)) == ("rgb(255, 255, 255)", "rgb(20, 23, 28)")


def test_every_chart_and_table_is_named(page: webdriver.Chrome, tmp_path: Path) -> None:
    """What a screen reader needs: names of charts, headers of tables, reachable scrolling."""
    show(page, sweep(tmp_path / "digits-7f3a"))
    nameless = "svg:not([aria-hidden]):not([role=img][aria-label])"
    for wrong in (nameless, "table:not(:has(th[scope=col]))", ".wide:not([tabindex][aria-label])"):
        assert page.find_elements(By.CSS_SELECTOR, wrong) == []
    charts = page.find_elements(By.CSS_SELECTOR, "#curves figure")
    assert charts
    assert all(chart.find_elements(By.CSS_SELECTOR, "table") for chart in charts)
