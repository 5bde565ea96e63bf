"""What charts of the report show, in a real Chromium: steps, scales, hours, words on cells."""

from __future__ import annotations

import itertools
from pathlib import Path

from selenium import webdriver

from hpcdet.read import report
from tests.builders import Builder
from tests.read.test_report_browser import ask, browser, page, pytestmark, ready, searched

__all__ = ["browser", "page", "pytestmark", "searched"]


def drawn(kind: str) -> str:
    """The chart of a figure, as its script knows it."""
    place = f"document.querySelector('figure[data-chart={kind}] .plot')"
    return f"echarts.getInstanceByDom({place})"


def test_the_best_so_far_goes_down_in_steps(page: webdriver.Chrome, tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    for value in (500.0, 3.02, 3.01, 3.0, 3.5):  # the last steps are less than a pixel high
        attempt = built.trial().attempt()
        attempt.metrics("validation", 10, validation_loss=value)
        attempt.end("completed")
    built.close()
    page.get(report.write(built.paths).as_uri())
    ready(page)
    lines = f"{drawn('history')}.getZr().storage.getDisplayList()"
    found = ask(
        page, f"{lines}.filter(one => one.type === 'polyline').map(one => one.shape.points)"
    )
    [stairs] = found
    assert len(stairs) == 10
    pairs = itertools.pairwise(stairs)
    assert all(one[0] == other[0] or one[1] == other[1] for one, other in pairs)
    scale = f"{drawn('history')}.getModel().getComponent('yAxis').axis.scale"
    assert ask(page, f"[{scale}.type, {scale}.getExtent()[0] > 0]") == ["log", True]


def test_each_curve_has_the_scale_that_it_needs(page: webdriver.Chrome, tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    attempt = built.trial().attempt()
    for step in range(1, 11):
        attempt.metrics("validation", step, validation_loss=10.0 ** (2 - step), accuracy=step / 10)
    attempt.end("completed")
    page.get(report.write(built.paths).as_uri())
    ready(page)
    plots = "[...document.querySelectorAll('figure[data-chart=curve] .plot')]"
    kinds = f"{plots}.map(one => echarts.getInstanceByDom(one).getOption().yAxis[0].type)"
    assert ask(page, kinds) == ["log", "value"]
    page.execute_script("document.querySelector('#curve-log').click()")
    assert ask(page, kinds) == ["value", "value"]
    page.execute_script("document.querySelector('#curve-log').click()")
    assert ask(page, kinds) == ["log", "log"]


def test_the_timeline_shows_the_hours_of_its_lanes(page: webdriver.Chrome, tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    for _ in range(60):
        attempt = built.trial().attempt()
        built.tick(600)
        attempt.end("completed")
    built.close()
    page.get(report.write(built.paths).as_uri())
    ready(page)
    ends = f"(one => [one.min, one.max])({drawn('timeline')}.getOption().xAxis[0])"
    begin, end = ask(page, ends)
    assert begin == 0 and 29 * 600 < end < 32 * 600
    act = "{type: 'dataZoom', startValue: 30, endValue: 59}"
    page.execute_script(f"{drawn('timeline')}.dispatchAction({act})")
    begin, end = ask(page, ends)
    assert 28 * 600 < begin <= 31 * 610 and end > 59 * 600


def test_words_on_cells_can_be_read(page: webdriver.Chrome, searched: str) -> None:
    page.get(searched)
    ready(page)
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for kind in ("matrix", "heatmap"):
            option = ask(page, f"{drawn(kind)}.getOption()")
            [scale], [series] = option["visualMap"], option["series"]
            begin, end = map(rgb, scale["inRange"]["color"])
            for one in series["data"]:
                value = one["value"][scale.get("dimension") or 2]
                share = (value - scale["min"]) / ((scale["max"] - scale["min"]) or 1)
                cell = [low + share * (high - low) for low, high in zip(begin, end, strict=True)]
                assert contrast(cell, rgb(one["label"]["color"])) > 4.4, (scheme, kind, one)


def rgb(colour: str) -> list[float]:
    """Red, green and blue of a colour such as #a1b2c3, 0 to 255."""
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def contrast(one: list[float], other: list[float]) -> float:
    """The contrast of two colours, as WCAG defines it."""
    lights = []
    for colour in (one, other):
        parts = [part / 255 for part in colour]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        lights.append(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05)
    return max(lights) / min(lights)


def test_captions_speak_of_charts_only_where_there_are_some(
    page: webdriver.Chrome, searched: str
) -> None:
    said = "[...document.querySelectorAll('figcaption')].map(one => one.innerText).join(' ')"
    page.get(searched)
    ready(page)
    assert "Drag along an axis" in ask(page, said)
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    page.get(searched)
    seen = " ".join(one.text for one in page.find_elements("css selector", "figcaption"))
    assert "Spearman" in seen
    assert all(word not in seen for word in ("Each line", "Drag along", "slider", "largest dot"))


def test_paper_is_light_and_has_what_is_folded(page: webdriver.Chrome, searched: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.get(searched)
    ready(page)
    media = {"media": "print", "features": features}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    assert ask(page, "getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert ask(page, f"{drawn('scatter')}.getOption().yAxis[0].axisLabel.color") == "#5b6370"
    folded = "[...document.querySelectorAll('details:not([open]) table:not(.cells)')]"
    seen = f"{folded}.map(one => one.checkVisibility({{contentVisibilityAuto: true}}))"
    assert set(ask(page, seen)) == {True}
    height = "document.querySelector('figure[data-chart={}] .plot').clientHeight"
    assert ask(page, height.format("scatter")) > 100  # it has no drawing of another kind
    assert ask(page, height.format("curve")) == 0
    words = "document.querySelector('#search').innerText"
    assert "the stronger its colour" in ask(page, words)
    assert all(word not in ask(page, words) for word in ("Drag along", "Show from"))
    legend = "document.querySelector('figure[data-chart=curve] ul.legend')"
    assert ask(page, f"getComputedStyle({legend}).display") == "flex"
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_a_legend_names_every_curve_on_a_phone(page: webdriver.Chrome, searched: str) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.get(searched)
    ready(page)
    option = ask(page, f"{drawn('curve')}.getOption()")
    shown = f"{drawn('curve')}.getZr().storage.getDisplayList()"
    words = ask(page, f"{shown}.map(one => one.style.text).filter(Boolean)")
    assert [one["name"] for one in option["legend"][0]["data"]] == [
        word for word in words if word.startswith("trial ")
    ]
    low = f"Math.max(...{shown}.filter(one => (one.style.text || '').startsWith('trial '))"
    lowest = ask(page, f"{low}.map(one => (one.transform || [0, 0, 0, 0, 0, 0])[5]))")
    assert lowest < option["grid"][0]["top"] - 8
