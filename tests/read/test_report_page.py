"""The report's numbers and text, without a browser."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jinja2
import pytest

from hpcdet import shipped, units
from hpcdet.errors import UsageError
from hpcdet.read import report
from hpcdet.read.experiment.gather import gather
from hpcdet.read.report import curves, embedded, timeline_chart
from hpcdet.read.report import scale as scales
from hpcdet.read.sections import whole
from hpcdet.read.sections.extent import ReportExtent
from hpcdet.read.sections.metric_lines import kept
from hpcdet.read.sections.redaction import redaction
from hpcdet.read.usage import costs, usage_table
from hpcdet.read.usage.spans import epoch, spans, totals
from hpcdet.read.views import timeline
from hpcdet.store.fs import files
from tests.builders import EPOCH, Builder, at, sweep
from tests.commands import validator

NOW = EPOCH.timestamp() + 1000


PLAIN = report.ReportOptions(plain=True)


def render(built: Builder, options: report.ReportOptions = PLAIN) -> str:
    return report.render(gather(built.paths), NOW, options)


def charts(built: Builder) -> list[curves.Chart]:
    shown = whole.report(gather(built.paths), NOW).sections
    return curves.charts(shown.curves, shown.trials, False)


class Text(HTMLParser):
    """The words of a page, and whether every tag is closed."""

    VOID = frozenset({"meta", "link", "path", "rect", "circle", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name != "style"
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "action"):
                self.links.append(value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def test_the_report_tells_what_happened(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    page = Text(render(built))
    assert not page.open
    for words in (
        "Best validation_loss0.1trial 2, step 100",
        "2 completed, 1 failed",
        "1 preempted, 2 failed",
        "ValueError: bad batch 1",
        "2 attempts: 3.1, 3.2",
        'raise ValueError("bad batch 1")',
        "trials/0003/attempts/1/logs/rank-0.log",
        "2 (best)COMPLETED",
        "1.1preempted0–150",
        "smaller_is_better: true",
        "The best value is 0.1, of trial 2.",
    ):
        assert words in page.text
    assert str(tmp_path) not in page.text  # the page may be sent to others
    assert [name for name in page.ids if name in whole.NAMES] == list(whole.NAMES)
    assert len(page.ids) == len(set(page.ids))


def test_a_plain_page_can_load_and_run_nothing(tmp_path: Path) -> None:
    text = render(sweep(tmp_path / "digits-7f3a"))
    page = Text(text)
    assert not page.tags & {"script", "iframe", "object", "embed", "img", "form"}
    assert all(link.startswith(("#", "data:,")) for link in page.links)
    assert "default-src 'none'" in text
    assert "script-src" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_the_same_folder_gives_the_same_report(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    assert render(built) == render(built)
    target = report.write(built.paths)
    assert target == built.paths.report
    other = report.write(built.paths, tmp_path / "elsewhere.html")
    assert other.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("steps", ["folder", "trial", "attempt"])
def test_a_report_of_what_has_hardly_begun(tmp_path: Path, steps: str) -> None:
    built = Builder(tmp_path / "new-1111")
    if steps != "folder":
        trial = built.trial(hidden=1)
        if steps == "attempt":
            trial.attempt()
    page = Text(render(built))
    assert "The experiment is not over" in page.text
    assert ("1 attempt has not ended" in page.text) == (steps == "attempt")
    assert "none yet" in page.text


def test_every_second_is_accounted_for_once(tmp_path: Path) -> None:
    gathered = gather(sweep(tmp_path / "digits-7f3a").paths)
    found = spans(gathered, NOW)
    for trial in gathered.trials:
        own = [span for span in found if span.trial == trial.number]
        assert trial.record is not None
        assert own[0].start == epoch(trial.record.created_at)
        assert all(a.end == b.start for a, b in itertools.pairwise(own))
        end = trial.attempts[-1].end
        assert end is not None
        assert own[-1].end == epoch(end.at)
    kinds = [(span.kind, span.attempt) for span in found if span.trial == 1]
    assert kinds == [
        ("waiting", 1),
        ("starting", 1),
        ("training", 1),
        ("lost", 1),
        ("waiting", 2),
        ("starting", 2),
        ("training", 2),
    ]
    assert totals(found)["lost"] > 0


def test_what_goes_on_is_counted_until_now(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    built.trial().attempt(ranks=4)  # first step at second 4
    waiting = built.trial()
    paused = built.trial().attempt()
    paused.end("paused")
    found = spans(gather(built.paths), NOW)
    running = next(s for s in found if s.trial == 1 and s.kind == "training")
    assert (running.end, running.slots) == (NOW, 4)
    assert [s.kind for s in found if s.trial == waiting.paths.number] == ["waiting"]
    assert found[-1].end == NOW


def test_nan_breaks_a_curve_and_is_counted(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    attempt = built.trial().attempt()
    for step, value in enumerate([1.0, 2.0, float("nan"), 4.0, float("inf"), 1.0, 2.0]):
        attempt.metrics("validation", step, validation_loss=value)
    attempt.metrics("training", 1, confusion=[[1, 2], [3, 4]], name="text")
    [chart] = charts(built)
    [line] = chart.lines
    assert (len(line.paths), len(line.dots), line.odd, line.count) == (2, 1, 2, 7)
    assert "NaN" not in "".join(line.paths)


def test_long_curves_keep_their_extremes() -> None:
    values = [1.0] * 10000
    values[4321] = 99.0
    values[7777] = -99.0
    places = kept(values, 300)
    assert len(places) <= 302
    assert {0, 9999, 4321, 7777} <= set(places)
    assert places == sorted(places)


def test_large_searches_are_cut_and_say_so(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    for n in range(25):
        attempt = built.trial(hidden=n).attempt()
        attempt.metrics("validation", 10, validation_loss=float(n + 1))
        attempt.end("completed")
    [chart] = charts(built)
    assert (len(chart.lines), chart.left_out) == (20, 5)
    assert [line.trial for line in chart.lines] == list(range(1, 21))
    assert "5 more are not drawn" in Text(render(built)).text


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-3, 7, [-2, 0, 2, 4, 6]), (5, 5, [5])],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert scales.even(low, high) == ticks


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (3661, "1 h 1 min"), (90000, "1 d 1 h"), (250, "4 min 10 s")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, ""),
        (0, "0 B"),
        (999, "999 B"),
        (4100, "4.1 kB"),
        (2e9, "2.0 GB"),
        (3e15, "3000.0 TB"),
    ],
)
def test_sizes_are_short(count: float | None, text: str) -> None:
    assert units.size(count) == text


def test_an_attempt_that_left_for_more_nodes_is_no_failure(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    trial = built.trial()
    for reason in ("resized", "completed"):
        trial.attempt().end(reason)
    page = Text(render(built))
    assert "Attempts2none failed or was interrupted" in page.text
    assert "1.1resized" in page.text


def test_a_year_has_few_ticks() -> None:
    assert all(len(scales.times(length)) <= 8 for length in (0.5, 7, 100, 5000, 90000, 3e7))


def test_every_end_has_a_sign(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    trial = built.trial()
    reasons: list[Any] = ["preempted", "walltime", "resized", "paused", "oom", "lost"]
    for reason in (*reasons, "completed"):
        trial.attempt().end(reason)
    gathered = gather(built.paths)
    timeline = timeline_chart.timeline(whole.report(gathered, NOW).sections.timeline)
    assert timeline is not None
    signs = ["↺", "◷", "↗", "‖", "✗", "✗", "✓"]
    assert [mark.sign for mark in timeline.lanes[0].ends] == signs


def test_what_was_decided_of_trials_is_said_with_its_reason(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    for action in (
        {"kind": "create", "trial": 1, "why": "bracket 1"},
        {"kind": "create", "trial": 2, "why": "an heir of trial 1", "parent": "1@50 batches"},
        {"kind": "create", "trial": 3, "why": "bracket 1"},
        {"kind": "pause", "trial": 1, "why": "rung 1 of 3: rank 2 of 2"},
        {"kind": "pause", "trial": 2, "why": "it waits for a place"},
        {"kind": "continue", "trial": 2, "until": {"batches": 100}},
        {"kind": "continue", "trial": 3, "until": {"batches": 100}},
    ):
        built.decide("action", action=action)
    built.trial().attempt().end("stopped")
    heard = len(gather(built.paths).trials)
    built.decide("action", action={"kind": "stop", "trial": heard, "why": "rung 1 of 3"})
    decided = timeline.decided(gather(built.paths))
    late = "; it had come to its end before it heard"
    first = f"pause: rung 1 of 3: rank 2 of 2{late}"
    assert decided == {1: first, 2: "an heir of trial 1", heard: "stop: rung 1 of 3"}
    assert "pause: rung 1 of 3: rank 2 of 2" in Text(render(built)).text


def test_the_command_stands_before_what_else_is_known_of_the_origin(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    known = {f"a{number:03d}": 1 for number in range(99)}
    record = {**known, "argv": ["hpcdet", "submit", "a b.yaml"], "origins": {"name": "FILE:7"}}
    record["data"] = [{"path": "/images", "digest": "sha256:ab", "files": 2}]
    built.paths.provenance.write_bytes(files.canonical(record))
    page = Text(render(built)).text
    rows = page.partition("Where it came from WhatValue ")[2]
    assert rows.startswith("commandhpcdet submit 'a b.yaml' data /imagessha256:ab, 2 files a000")
    assert "FILE:7" not in rows


def test_a_cut_table_keeps_the_best_trial(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    for n in range(8):
        attempt = built.trial(hidden=n).attempt()
        attempt.metrics("validation", 10, validation_loss=float(8 - n))
        attempt.end("completed")
    shown = whole.report(gather(built.paths), NOW, ReportExtent(3, 2, 10, 3, 3)).sections
    assert [row.trial for row in shown.trials.rows] == [8, 7, 6]
    assert (shown.trials.left_out, shown.trials.best) == (5, 8)
    assert shown.curves.trials == [8, 7]
    assert 8 in [lane.trial for lane in shown.timeline.lanes]
    assert "5 trials are left out" in " ".join(shown.summary.completeness)


def test_the_list_of_trials_is_longer_than_other_tables(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    for n, loss in enumerate((5.0, 7.0, 4.0, 4.0, 6.0, 4.0, 1.0, 1.0)):
        attempt = built.trial(hidden=n).attempt()
        attempt.metrics("validation", 10, validation_loss=loss)
        attempt.end("completed")
    shown = whole.report(gather(built.paths), NOW, ReportExtent(rows=2)).sections
    assert len(shown.trials.rows) == 8
    assert len(shown.timeline.attempts) == 2
    assert [one.trial for one in shown.search.history] == [1, 3, 5, 7]
    improvements = Text(render(built)).text.partition("Improvements as a table ")[2]
    assert improvements.startswith("Trials endedTrialBest validation_loss 115 334 771 Hyper")


def test_it_is_said_that_the_best_trial_has_failed(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    for loss, reason in ((0.5, "completed"), (0.1, "user_error")):
        trial = built.trial()
        attempt = trial.attempt()
        attempt.metrics("validation", 10, validation_loss=loss)
        attempt.end(reason)
    trial.control("fail", why="failed once")
    assert "The best trial, 2, has failed" in Text(render(built)).text
    assert "has failed" not in Text(render(sweep(tmp_path / "digits-91c0"))).text


def test_a_file_is_cut_to_its_size_or_refused(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    for n in range(60):
        attempt = built.trial(hidden=n).attempt()
        for step in range(50):
            attempt.metrics("validation", step, validation_loss=float(n + step % 7) + 1)
        attempt.end("completed")
    whole_size = len(render(built).encode())
    small = render(built, report.ReportOptions(plain=True, max_mb=0.9 * whole_size / 1e6))
    assert len(small.encode()) < 0.9 * whole_size
    assert "are not drawn" in Text(small).text
    with pytest.raises(UsageError, match="MB"):
        render(built, report.ReportOptions(plain=True, max_mb=0.001))


def test_a_process_compiles_templates_and_packs_the_engine_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    with_scripts = report.ReportOptions()
    first = render(built, with_scripts)
    packed = []

    def compress(data: bytes, *words: Any, **more: Any) -> bytes:
        packed.append(len(data))
        return zip_whole(data, *words, **more)

    zip_whole = gzip.compress
    monkeypatch.setattr(gzip, "compress", compress)
    monkeypatch.setattr(jinja2.Environment, "compile", None)
    assert render(built, with_scripts) == first
    assert len(packed) == 1 and packed[0] < 100_000, "the data alone"


def test_the_same_folder_gives_the_same_bytes_in_each_format(tmp_path: Path) -> None:
    for form in ("html", "json", "md"):
        built = sweep(tmp_path / f"digits-{form}")
        options = report.ReportOptions(format=form)
        assert render(built, options) == render(built, options)


def test_json_has_every_section(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    item = json.loads(render(built, report.ReportOptions(format="json")))
    assert item["schema"] == "hpcdet.report/1"
    schema = validator("report")
    assert schema is not None
    schema.validate(item)
    assert list(item["sections"]) == list(whole.NAMES)
    assert item["sections"]["summary"]["answer"]["trial"] == 2
    assert item["sections"]["summary"]["answer"]["margin"] == pytest.approx(0.15)
    [failure] = item["sections"]["failures"]["groups"]
    assert failure["attempts"] == ["3.1", "3.2"]
    [chart] = [one for one in item["sections"]["curves"]["charts"] if one["name"] == "loss"]
    [first] = [one for one in chart["lines"] if one["trial"] == 1]
    assert first["points"]["attempt"] == [1, 1, 2, 2, 2]
    assert first["superseded"]["step"] == [150]
    assert first["points"]["slot_hours"] == sorted(first["points"]["slot_hours"])


def test_time_is_divided_as_usage_divides_it(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    [use] = usage_table.of_experiment(built.paths, ["user"])
    shown = whole.report(gather(built.paths), NOW).sections
    amounts = {one.kind: one.slot_s / 3600 for one in shown.time.shares}
    for kind, hours in vars(use.slot_hours).items():
        if kind != "allocated":
            assert amounts.get(kind, 0) == pytest.approx(hours, abs=1e-6), kind
    held = [one.share for one in shown.time.shares if one.kind != "queued"]
    assert sum(share or 0 for share in held) == pytest.approx(1, abs=1e-5)
    assert shown.numbers.spent.slot_hours == pytest.approx(use.slot_hours.allocated, abs=1e-5)
    assert amounts["failed"] > 0 and amounts["lost"] > 0


def test_the_clock_is_not_in_the_report_of_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = sweep(tmp_path / "digits-7f3a", ended=False)
    built.trial(hidden=128).attempt().metrics("validation", 50, validation_loss=0.5)
    built.worker(2)
    options = report.ReportOptions(format="json")
    before = render(built, options)
    clock = costs.time.time
    monkeypatch.setattr(costs.time, "time", lambda: clock() + 7200)
    assert render(built, options) == before


def test_the_report_says_how_to_train_it_again(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    commands = whole.report(gather(built.paths), NOW).sections.reproduce.commands
    assert [line.partition("  ")[0] for line in commands[-2:]] == [
        "hpcdet reproduce digits-7f3a/2",
        "hpcdet reproduce digits-7f3a/2 --run",
    ]


def test_markdown_shows_names_as_they_are(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    built.trial(**{"a|b<script>": "`x`"})
    text = render(built, report.ReportOptions(format="md"))
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        f"## {name.capitalize()}" for name in whole.NAMES
    ]
    assert "<script>" not in text
    assert "No data." in text.partition("## Governance")[2][:20]
    assert "| 2 | 1 | COMPLETED |" in text


def test_what_a_hyperparameter_was_can_be_typed_back(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    built.trial(hidden=65536, word="true", bad=False)
    text = render(built, report.ReportOptions(format="md"))
    assert "hidden = 65536" in text and "word = 'true'" in text and "= 65,536" not in text
    cells = re.findall(r"<td>([^<]*)</td>", render(built))
    assert {"65536", "&#39;true&#39;", "false"} <= {*cells}


HOME = "/".join(["", "home"])


def test_redaction_replaces_each_name_by_one_word(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    record = {"user": "ada", "host": "login1", "cwd": f"{HOME}/ada/secret", "created_at": at(0)}
    record["git"] = {"commit": "abc123", "remote": "git@host:ada/x", "dirty": False}  # type: ignore[assignment]
    record["environment"] = {"LANG": "C"}  # type: ignore[assignment]
    built.paths.provenance.write_bytes(files.canonical(record))
    plain = Text(render(built)).text
    assert "ada" in plain and "login1" in plain and "abc123" in plain
    for options in (
        report.ReportOptions(plain=True, redact=("user", "host", "path", "env")),
        report.ReportOptions(plain=True, anonymous=True),
        report.ReportOptions(format="json", anonymous=True),
    ):
        text = render(built, options)
        words = Text(text).text if options.format == "html" else text
        assert not re.search(rf"\bada\b|login1|{HOME}|\bn1\b|environment.LANG", words)
        assert "user-1" in words
        assert ("digits" in words) != options.anonymous
        assert ("abc123" in words) != options.anonymous


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"PYTHONPATH=/opt/x/y:{HOME}/bob/lib", "PYTHONPATH=…/y:…/lib"),
        (f"error:{HOME}/bob/x.py", "error:…/x.py"),
        (f"file://{HOME}/bob/x.py", "file://…/x.py"),
        (f"-I{HOME}/bob/include", "-I…/include"),
        (f"/{HOME}/bob//x//y", "…/y"),
        ("~bob/x/y", "…/y"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("a/b/c and ../x/y", "a/b/c and ../x/y"),
        ("to ada.lovelace@example.org", "to …@…"),
        ("git@example.org:ada/x", "git@example.org:user-1/x"),
        ("login1.cluster.example.org:22, login1", "host-1:22, host-1"),
        ("login1.5 ada-2", "host-1.5 ada-2"),
        ("local-6f-8@login1_12, login10, login1_x", "local-6f-8@host-1_12, login10, login1_x"),
    ],
)
def test_no_part_of_a_path_address_or_host_is_left(tmp_path: Path, text: str, shown: str) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    record = {"user": "ada", "host": "login1.cluster.example.org", "created_at": at(0)}
    built.paths.provenance.write_bytes(files.canonical(record))
    hide = redaction(gather(built.paths), ("user", "host", "path"))
    assert hide({"x": [text]}) == {"x": [shown]}


def test_digests_of_code_leave_room_for_the_facts(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a")
    record = json.loads(built.paths.provenance.read_text())
    record |= {"code": {f"{n}.py": "ab" for n in range(100)}, "host": "login1"}
    built.paths.provenance.write_bytes(files.canonical(record))
    shown = whole.report(gather(built.paths), NOW).sections.reproduce.facts
    facts = {fact.name: fact.value for fact in shown}
    assert facts["host"] == "login1" and facts["code"] == "100 files"


def test_a_colour_means_one_thing() -> None:
    style = (shipped.folder("templates") / "report" / "style.css").read_text()
    schemes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(schemes) == 2, "light and dark"
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): (#\w+);", scheme))
        plain = {"paper", "ink", "front", "faint", "line", "panel"}
        means = [name for name in colours if name not in plain]
        assert len(means) > 25
        assert len({colours[name] for name in means}) == len(means)


def test_the_engine_is_the_official_one() -> None:
    vendor = shipped.folder("templates") / "report" / "vendor"
    digest = hashlib.sha256((vendor / "echarts.min.js").read_bytes()).hexdigest()
    assert digest == "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"  # 6.1.0
    assert "Apache License" in (vendor / "LICENSE").read_text()
    assert (vendor / "NOTICE").read_text().startswith("Apache ECharts")


def test_the_own_script_stays_small() -> None:
    folder = shipped.folder("templates") / "report" / "script"
    assert {path.name for path in folder.glob("*.js")} == {*embedded.OWN, embedded.LIVE}
    assert sum(len(path.read_text().splitlines()) for path in folder.glob("*.js")) <= 1000


def test_a_state_has_its_reason_beside_it(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    paused = "rung 1 of 3 (100 batches): rank 3 of 6, the best 2 go on"
    built.trial().control("pause", why=paused)
    built.trial().control("stop", why="threshold: <0.5> is above 0.4")
    page = report.render(gather(built.paths), NOW)
    assert '<small class="why">rank 3 of 6 (rung 1)</small></td>' in page
    assert '<small class="why">threshold: &lt;0.5&gt; is above 0.4</small></td>' in page


def test_numbers_and_margins_are_readable(tmp_path: Path) -> None:
    assert (
        scales.slot_time(6540.4 * 3600) == "6,540 slot-h"
        and scales.slot_time(4500) == "1.25 slot-h"
    )
    shown = [*map(scales.number, (11190.4, 1234567, -0.000123456, 9999.6, 2e12))]
    assert shown == ["11,190", "1,234,567", "-0.0001235", "10,000", "2e+12"]
    built = Builder(tmp_path / "digits-7f3a")
    for _ in range(2):
        built.trial().attempt().metrics("validation", 3, validation_loss=0.5)
    page = Text(report.render(gather(built.paths), NOW)).text
    assert "as good as trial 2" in page and "0 better" not in page


def test_every_stop_is_listed_with_its_bound(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a", ended=False)
    said = {"kind": "report", "trial": 1, "length": {"batches": 100}}
    built.decide("event", event={**said, "metrics": {"validation_loss": 0.5}})
    why = "rung 1 of 3 (100 batches): rank 3 of 6, the best 2 go on"
    built.decide("action", action={"kind": "stop", "trial": 1, "why": why})
    why = "threshold: 0.5 is above 0.4"
    built.decide("action", action={"kind": "stop", "trial": 2, "why": why})
    why = "rung 1 of 3 (100 batches): rank 2 of 2, nobody goes on yet"
    built.decide("action", action={"kind": "pause", "trial": 3, "why": why})
    first, second, third = whole.report(gather(built.paths), NOW).sections.search.stops
    assert (third.bound, third.compared[:13]) == ("nobody went on yet", "1 other trial")
    assert (first.rule, first.length, first.value) == ("rung 1 of 3 (100 batches)", 100, 0.5)
    assert first.bound == "among the best 2 of 6"
    assert first.compared.startswith("5 other trials")
    assert (second.rule, second.bound, second.length, second.value) == (
        "threshold",
        "0.4",
        None,
        None,
    )
