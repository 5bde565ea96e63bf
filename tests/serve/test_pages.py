"""Pages of the live view: what they show, inert, in a real Chromium through ``?token=``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from hpcdet.read import catalog
from hpcdet.registry import add_version, registry_changes
from hpcdet.registry.model_names import ModelReference
from hpcdet.store.decisions import lease
from tests.builders import Builder, put, sweep
from tests.read.test_report_browser import (
    CUT_OFF,
    HOSTILE,
    broken,
    browser,
    in_colours,
    narrow,
    page,
    pytestmark,
    ready,
)
from tests.registry.models import content, source, trained
from tests.serve.conftest import Served, serving

__all__ = ["browser", "page", "pytestmark"]

PAGES = {
    "/": ("digits-7f3a", "Where the slot hours went"),
    "/e/digits-7f3a": ('id="summary"', "connect-src"),
    "/e/digits-7f3a/3": ("State, and why", "hpcdet logs"),
    "/compare?ids=digits-7f3a/1,digits-91c0": ("What differs", "hidden"),
    "/models": ("No model yet", "registry add"),
    "/usage?by=user": ("ada", "allocated", "client.usage(["),
}


@pytest.mark.parametrize("address", PAGES)
def test_pages_show_what_they_are_of_and_are_sent_once(served: Served, address: str) -> None:
    answer = served.ask(address)
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    for words in PAGES[address]:
        assert words in answer.body, words
    again = served.ask(address, if_none_match=answer.headers["etag"])
    assert (again.status, again.body) == (304, "")


@pytest.mark.parametrize(
    ("address", "status"),
    [("/e/nope", 404), ("/e/digits-7f3a/99", 404), ("/e/..%2f..%2fetc", 404), ("/?x=1", 400)],
)
def test_pages_that_are_not_there_are_errors(served: Served, address: str, status: int) -> None:
    answer = served.ask(address)
    assert answer.status == status
    if answer.headers["content-type"] == "application/json" and "etc" not in address:
        told = json.loads(answer.body)["error"]
        seen = served.ask(address, accept="text/html,*/*;q=0.8")
        assert seen.status == status and seen.headers["content-type"].startswith("text/html")
        assert escape(told["message"]) in seen.body and "<script" not in seen.body


def test_a_trial_says_why_as_explain_does(served: Served) -> None:
    body = served.ask("/e/digits-7f3a/3").body
    trace = body.partition("Traceback (most recent call last):")[2]
    assert trace.partition("raise ValueError")[0].count("\n") == 2
    assert "user error" in body and "user_error" not in body


def test_long_words_beside_each_other_are_read(page: webdriver.Chrome, tmp_path: Path) -> None:
    for id, letter in (("digits-1111", "x"), ("digits-2222", "y")):
        Builder(tmp_path / id).trial(hidden=64 * letter).attempt().end("completed")
    with serving(tmp_path, "--port", "0") as served:
        ids = "compare?ids=digits-1111,digits-2222&"
        page.get(served.told["url"].replace("?", ids, 1))
        cells = "[...document.querySelectorAll('#differs td')]"
        assert page.execute_script(f"return {cells}.some(one => one.innerText.length === 64)")
        wide = f"{cells}.filter(one => one.scrollWidth > one.clientWidth).length"
        assert page.execute_script(f"return {wide}") == 0
        assert page.find_elements(By.CSS_SELECTOR, "#same details:not([open])")


def test_names_of_users_are_read_and_not_run(tmp_path: Path) -> None:
    built = Builder(tmp_path / "odd-1111", name=HOSTILE, labels=[HOSTILE])
    built.trial(hidden=HOSTILE).attempt().log(f"{HOSTILE}\n")
    with serving(tmp_path) as served:
        for address in ("/", "/e/odd-1111", "/e/odd-1111/1", "/usage?by=user"):
            body = served.ask(address).body
            assert "<img src=x" not in body and "<script>window" not in body, address


def test_changes_of_models_are_commands_to_copy(tmp_path: Path) -> None:
    built = trained(tmp_path / "digits-7f3a")
    registry = tmp_path / "registry"
    for step in (20, 30):
        add_version.add(registry, "digits", source(built, step), content=content)
    registry_changes.set_alias(registry, ModelReference("digits", 2), "best")
    with serving(tmp_path) as served:
        body = served.ask("/models").body
        for verb in ("alias digits:2 production", "unalias digits@best", "note digits:2 TEXT"):
            assert f"hpcdet registry {verb}" in body
        assert "registry rm" not in body  # which refuses a version with an alias
        ids = "model:digits:1,model:digits@best"
        assert "0.2" in served.ask(f"/compare?ids={ids}").body


def test_what_an_experiment_is_like_changes_with_its_journals(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a", ended=False)
    attempt = built.trial(hidden=128).attempt()
    seen = [catalog.appearance(built.paths)]
    attempt.metrics("validation", 50, validation_loss=0.2)
    seen.append(catalog.appearance(built.paths))
    built.trial(hidden=256)
    seen.append(catalog.appearance(built.paths))
    built.close()
    seen.append(catalog.appearance(built.paths))
    assert all(one != other for one, other in itertools.pairwise(seen))
    assert catalog.appearance(built.paths) == seen[-1]


def test_a_state_has_its_reason_beside_it(tmp_path: Path) -> None:
    queued = Builder(tmp_path / "queued-1111")
    queued.trial(bad=True).control(
        "pause", why="rung 1 of 3 (100 batches): rank 3 of 6, the best 2 go on"
    )
    queued.trial().control("stop", why="threshold: 0.5 is above 0.4")
    put(queued.paths.term(1), lease.Term(1, "searcher", "n1", 1, queued.tick()))

    def waits(reason: str) -> None:
        told = {"reason": reason, "kind": "", "tasks": 2, "since": queued.tick(), "long": False}
        put(lease.beat_path(queued.paths, 1), lease.Beat("ab", at=queued.tick(), waits=[told]))

    waits("Resources")
    with serving(tmp_path) as served:
        assert "queue: Resources since" in served.ask("/").body
        of_trial = served.ask("/e/queued-1111/1").body
        assert "rank 3 of 6" in of_trial and "<td>true</td>" in of_trial
        assert "STOPPED: threshold" in served.ask("/e/queued-1111/2").body
        before = served.ask("/e/queued-1111")
        assert "queue: Resources since" in before.body
        waits("Priority")
        after = served.ask("/e/queued-1111", if_none_match=before.headers["etag"])
        assert after.status == 200 and "queue: Priority since" in after.body


def test_a_new_metric_is_drawn_while_somebody_looks(page: webdriver.Chrome, tmp_path: Path) -> None:
    built = Builder(tmp_path / "live-1111")
    attempt = built.trial(hidden=16).attempt()
    attempt.metrics("validation", 50, validation_loss=0.75)
    with serving(tmp_path, "--port", "0") as served:
        host = f"http://localhost:{served.told['port']}"
        page.get(f"{host}/e/live-1111?token={served.told['token']}")
        ready(page)
        assert page.current_url == f"{host}/e/live-1111"
        attempt.metrics("validation", 100, validation_loss=0.125)
        WebDriverWait(page, 60).until(
            lambda one: (
                "0.125" in str(one.find_element(By.ID, "numbers").get_property("textContent"))
            )
        )
        ready(page)
        assert [line for line in page.get_log("browser") if line["level"] == "SEVERE"] == []


def test_a_saved_page_is_whole_and_asks_nobody(page: webdriver.Chrome, tmp_path: Path) -> None:
    root = tmp_path / "root"
    sweep(root / "digits-7f3a")
    sweep(root / "digits-91c0")
    with serving(root) as served:
        bodies = {address: served.ask(address).body for address in PAGES}
    for number, (address, body) in enumerate(bodies.items()):
        assert 'download="' in body, address
        saved = tmp_path / f"{number}.html"
        saved.write_text(body)
        page.get(saved.as_uri())
        if address == "/e/digits-7f3a":
            ready(page)
        looks = (
            "document.dispatchEvent(new Event('visibilitychange')); setTimeout(arguments[0], 200)"
        )
        page.execute_async_script(looks)
        assert page.execute_script("return document.body.className") == "", address
        assert page.get_log("browser") == [], address


def visited(page: webdriver.Chrome, root: Path) -> Iterator[str]:
    """Open one page after the other; yield the address of each once it is drawn."""
    sweep(root / "digits-7f3a")
    sweep(root / "digits-91c0")
    with serving(root, "--port", "0") as served:
        host = f"http://localhost:{served.told['port']}"
        page.get(f"{host}/?token={served.told['token']}")
        for address in PAGES:
            page.get(f"{host}{address}")
            if address == "/e/digits-7f3a":
                ready(page)
            yield address


def test_pages_fit_a_small_screen(page: webdriver.Chrome, tmp_path: Path) -> None:
    narrow(page, 390)
    for address in visited(page, tmp_path):
        assert page.execute_script("return document.documentElement.scrollWidth") <= 390
        assert page.execute_script(CUT_OFF) == [], address


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_breaks_a_rule_of_accessibility(
    page: webdriver.Chrome, tmp_path: Path, scheme: str
) -> None:
    in_colours(page, scheme)
    for address in visited(page, tmp_path):
        assert broken(page) == [[], []], address
