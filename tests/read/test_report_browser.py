"""The report in a real Chromium: shown, quiet, inert and readable on any screen."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

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
    "--disable-3d-apis",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
]
AXE = Path(sys.prefix) / "share" / "axe-core" / "axe.min.js"
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


def ready(page: webdriver.Chrome) -> None:
    """Wait until the page has drawn its charts."""
    WebDriverWait(page, 120).until(
        lambda one: one.find_elements(By.CSS_SELECTOR, "body[data-ready]")
    )


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report of a search with everything that is drawn."""
    draw = random.Random(1)
    space = {
        "lr": {"type": "log", "minval": -4, "maxval": -1},
        "width": {"type": "int", "minval": 1, "maxval": 64},
        "act": {"type": "categorical", "vals": ["relu", "tanh"]},
    }
    built = Builder(tmp_path_factory.mktemp("searched") / "search-1", hyperparameters=space)
    for n in range(24):
        lr, width = 10 ** draw.uniform(-4, -1), draw.randint(1, 64)
        trial = built.trial(lr=lr, width=width, act=draw.choice(["relu", "tanh"]))
        attempt = trial.attempt()
        for step in (100, 200, 300):
            attempt.metrics("validation", step, validation_loss=lr + width / step)
        attempt.metrics("validation", 300, confusion=[[9, n], [1, 8]], tree={"a": {"b": n}})
        if n == 1:
            attempt.checkpoint(200)
            attempt.end("preempted")
            attempt = trial.attempt(start=200)
            attempt.metrics("validation", 300, validation_loss=lr + width / 301)
        attempt.end("completed")
    built.close()
    return report.write(built.paths).as_uri()


def table(page: webdriver.Chrome) -> list[int]:
    """The trials that the table shows, from the top."""
    rows = "[...document.querySelectorAll('table[data-table=trials] tbody tr')]"
    return [int(n) for n in ask(page, f"{rows}.filter(r => !r.hidden).map(r => r.dataset.trial)")]


def scatter(page: webdriver.Chrome) -> set[int]:
    """The trials that the scatter chart shows."""
    place = "document.querySelector('figure[data-chart=scatter] .plot')"
    option = f"echarts.getInstanceByDom({place}).getOption()"
    return {int(n) for n in ask(page, f"{option}.series[0].data.map(d => d.name)")}


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
    ready(page)
    assert ask(page, "document.querySelectorAll('script').length") == 2
    assert ask(page, "document.querySelectorAll('img').length") == 0
    assert page.find_element(By.TAG_NAME, "h1").text.startswith(HOSTILE)
    assert page.find_element(By.TAG_NAME, "body").text.count(HOSTILE) >= 5
    assert page.get_log("browser") == []
    # and if markup slipped through, the policy would stop it
    ask(page, f"document.body.insertAdjacentHTML('beforeend', {json.dumps(HOSTILE)})")
    assert ask(page, "window.hit === undefined")


CUT_OFF = """
const scrolls = e => e && (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
    || scrolls(e.parentElement));
const outside = (inner, outer) => inner.width && (inner.right > outer.right + 1
    || inner.left < outer.left - 1);
const screen = {left: 0, right: innerWidth};
const hides = (e, side) => ['hidden', 'clip'].includes(getComputedStyle(e)['overflow' + side]);
const cut = e => hides(e, 'X') && e.scrollWidth > e.clientWidth + 1
    || hides(e, 'Y') && e.scrollHeight > e.clientHeight + 1
    || !scrolls(e.parentElement) && outside(e.getBoundingClientRect(), screen);
const html = [...document.querySelectorAll('body *:not(svg *, .plot *)')].filter(cut);
const labels = [...document.querySelectorAll('svg text')].filter(
    e => outside(e.getBoundingClientRect(), e.ownerSVGElement.getBoundingClientRect()));
return [...html, ...labels].map(e => e.outerHTML.slice(0, 120));
"""
"""What no scrolling brings into sight."""


def narrow(page: webdriver.Chrome, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_it_fits_the_screen(
    page: webdriver.Chrome, searched: str, tmp_path: Path, width: int, scripts: bool
) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    built.trial(**{"a_hyperparameter_of_a_very_long_name" * 3: "x" * 200})
    narrow(page, width)
    for address in (searched, report.write(built.paths).as_uri()):
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        page.get(address)
        if scripts:
            ready(page)
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        assert ask(page, "innerWidth") == width
        for shut in (True, False):
            if not shut:
                ask(page, "document.querySelectorAll('details').forEach(e => { e.open = true })")
            assert ask(page, "document.documentElement.scrollWidth") <= width
            assert page.execute_script(CUT_OFF) == []
    page.execute_script(
        "const p = document.body.appendChild(document.createElement('p')); p.textContent = 'words';"
        "Object.assign(p.style, {overflow: 'hidden', width: '9px'})"
    )
    assert len(page.execute_script(CUT_OFF)) == 1, "what is cut off is found"


def test_dark_screens_get_a_dark_page(page: webdriver.Chrome, tmp_path: Path) -> None:
    show(page, sweep(tmp_path / "digits-7f3a"))
    colour = "getComputedStyle(document.body).backgroundColor"
    light = ask(page, colour)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    assert (light, ask(page, colour)) == ("rgb(255, 255, 255)", "rgb(20, 23, 28)")


def test_every_chart_and_table_is_named(page: webdriver.Chrome, tmp_path: Path) -> None:
    """What a screen reader needs: names of charts, headers of tables, reachable scrolling."""
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    show(page, sweep(tmp_path / "digits-7f3a"))
    nameless = "svg:not([aria-hidden]):not([role=img][aria-label])"
    for wrong in (nameless, "table:not(:has(th[scope=col]))", ".wide:not([tabindex][aria-label])"):
        assert page.find_elements(By.CSS_SELECTOR, wrong) == []
    charts = page.find_elements(By.CSS_SELECTOR, "#curves figure")
    assert charts
    assert all(chart.find_elements(By.CSS_SELECTOR, "table") for chart in charts)


CONTRAST = {
    **{"ignoreUnicode": True, "ignoreLength": True, "ignorePseudo": False},
    **{"boldValue": 700, "boldTextPt": 14, "largeTextPt": 18, "pseudoSizeThreshold": 0.25},
    "contrastRatio": {"normal": {"expected": 4.5}, "large": {"expected": 3}},
}
"""axe-core's own rule, which decides of a single character, too."""

CHARTS = ("parallel", "scatter", "curve", "timeline", "importance", "matrix", "heatmap")


def test_all_is_drawn_from_one_file(page: webdriver.Chrome, searched: str) -> None:
    page.get(searched)
    ready(page)
    assert requests(page) == [searched]
    assert page.get_log("browser") == []
    for kind in CHARTS:
        figure = f"document.querySelector('figure[data-chart={kind}]')"
        canvas = f"{figure}.querySelector('canvas')"
        pixels = f"{canvas}.getContext('2d').getImageData(0, 0, {canvas}.width, {canvas}.height)"
        assert ask(page, f"{pixels}.data.some(v => v > 0)"), kind
        assert ask(page, f"{figure}.querySelector('figcaption').textContent.length > 10"), kind
        assert ask(page, f"{figure}.querySelector('table') !== null"), kind
        assert ask(page, f"{figure}.querySelector('[role=img]').ariaLabel.length > 10"), kind
    assert ask(page, "document.querySelector('.metric-tree').innerText").startswith("a")


def test_two_brushed_axes_narrow_table_and_scatter_alike(
    page: webdriver.Chrome, searched: str
) -> None:
    page.get(searched)
    ready(page)
    place = "document.querySelector('figure[data-chart=parallel] .plot')"
    for axis, bounds in (("axis-2", "[16, 48]"), ("axis-1", "[0.001, 0.1]")):
        act = f"{{type: 'axisAreaSelect', parallelAxisId: '{axis}', intervals: [{bounds}]}}"
        ask(page, f"echarts.getInstanceByDom({place}).dispatchAction({act})")
        WebDriverWait(page, 20).until(lambda one: "b." in one.current_url)
    WebDriverWait(page, 20).until(lambda one: one.current_url.count("b.") == 2)
    rows = ask(
        page,
        "[...document.querySelectorAll('table[data-table=trials] tbody tr')].filter(r => !r.hidden)"
        ".map(r => [...r.cells].map(c => c.textContent))",
    )
    shown = table(page)
    assert 0 < len(shown) < 24
    assert set(shown) == scatter(page)
    heads = ask(page, "[...document.querySelectorAll('[data-key]')].map(h => h.dataset.key)")
    assert all(0.001 <= float(row[heads.index("h:lr")]) <= 0.1 for row in rows)
    assert all(16 <= int(row[heads.index("h:width")]) <= 48 for row in rows)
    link = page.current_url
    page.get("about:blank")
    page.get(link)
    ready(page)
    assert table(page) == shown
    assert set(shown) == scatter(page)


def test_sorting_filtering_and_brushing_need_no_mouse(
    page: webdriver.Chrome, searched: str
) -> None:
    page.get(searched)
    ready(page)
    by_rank = table(page)
    keys = ActionChains(page)

    def focus(selector: str) -> None:
        """Walk to an element by the Tab key alone."""
        for _ in range(200):
            keys.send_keys(Keys.TAB).perform()
            if ask(page, f"document.activeElement.matches({json.dumps(selector)})"):
                return
        raise AssertionError(f"the Tab key does not reach {selector}")

    focus("#filter")
    keys.send_keys("relu").perform()
    filtered = table(page)
    assert 0 < len(filtered) < 24
    assert scatter(page) == set(filtered)
    focus("th[data-key=trial] button")
    keys.send_keys(Keys.ENTER).perform()
    head = page.find_element(By.CSS_SELECTOR, "th[data-key=trial]")
    assert head.get_attribute("aria-sort") == "ascending"
    assert table(page) == sorted(filtered)
    keys.send_keys(Keys.SPACE).perform()
    assert head.get_attribute("aria-sort") == "descending"
    assert table(page) == sorted(filtered, reverse=True)
    page.execute_script(
        "document.querySelector('table[data-table=stops], #search summary').focus()"
    )
    focus("input[aria-label='show width from']")
    keys.send_keys("32", Keys.TAB).perform()
    brushed = table(page)
    assert 0 < len(brushed) < len(filtered)
    assert scatter(page) == set(brushed)
    said = page.find_element(By.ID, "announce").get_property("textContent")
    assert "of 24 trials are shown" in str(said)
    assert set(brushed) < set(by_rank)


def test_a_link_restores_filter_selection_and_order(page: webdriver.Chrome, searched: str) -> None:
    page.get(searched)
    ready(page)
    page.find_element(By.ID, "filter").send_keys("relu")
    page.find_element(By.CSS_SELECTOR, "th[data-key='h:width'] button").send_keys(Keys.ENTER)
    shown = table(page)
    for trial in shown[1:3]:
        place = f"tr[data-trial='{trial}'] td button"
        page.find_element(By.CSS_SELECTOR, place).send_keys(Keys.ENTER)
    rows = "[...document.querySelectorAll('tr.picked')].map(r => Number(r.dataset.trial))"
    picked = f"{rows}.sort((a, b) => a - b)"
    assert ask(page, picked) == sorted(shown[1:3])
    link = page.current_url
    page.get("about:blank")
    page.get(link)
    ready(page)
    assert 0 < len(shown) < 24 and table(page) == shown and scatter(page) == set(shown)
    assert page.find_element(By.ID, "filter").get_property("value") == "relu"
    assert ask(page, picked) == sorted(shown[1:3])
    pressed = "[...document.querySelectorAll('td button[aria-pressed=true]')].length"
    assert ask(page, pressed) == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_breaks_no_rule_of_accessibility(
    page: webdriver.Chrome, searched: str, scheme: str
) -> None:
    in_colours(page, scheme)
    page.get(searched)
    ready(page)
    assert broken(page) == [[], []]


def in_colours(page: webdriver.Chrome, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def broken(page: webdriver.Chrome) -> Any:
    """Which rules of axe-core the page breaks, and of which it could not decide."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make setup fetches it with npm")
    # unfolded, so that no cell is behind an edge, where axe decides nothing of its contrast
    unfolded = ".wide, .tall { overflow: visible !important; max-height: none !important }"
    header = ".tall thead th { position: static !important }"
    body = "body { max-width: none !important; width: 3000px !important }"
    for rule in (unfolded, header, body):
        page.execute_script("document.styleSheets[0].insertRule(arguments[0], 0)", rule)
    for element in page.find_elements(By.CSS_SELECTOR, "details"):
        page.execute_script("arguments[0].open = true", element)
    page.execute_script(AXE.read_text())
    page.execute_script(
        "axe.configure({checks: [{id: 'color-contrast', options: arguments[0]}]})", CONTRAST
    )
    return page.execute_async_script(
        "const done = arguments[0]; axe.run(document, {resultTypes: ['violations', 'incomplete']})"
        ".then(r => done([r.violations, r.incomplete].map(l => l.map(v => "
        "[v.id, v.nodes.length, v.nodes.slice(0, 3).map(n => n.html)]))))"
    )


def test_curves_follow_their_controls(page: webdriver.Chrome, searched: str) -> None:
    page.get(searched.replace("report.html", "report.html#curves?x=wall&smooth=0.5&log=1"))
    ready(page)
    place = "document.querySelector('figure[data-chart=curve] .plot')"
    option = f"echarts.getInstanceByDom({place}).getOption()"
    assert ask(page, f"{option}.yAxis[0].type") == "log"
    assert ask(page, f"{option}.xAxis[0].name").startswith("seconds")
    names = ask(page, f"{option}.series.map(s => s.name)")
    assert sum(name == "trial 2" for name in names) == (2 if "trial 2" in names else 0)
    assert len(names) >= 40, "each line and its smoothed one"
