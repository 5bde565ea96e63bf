"""Snapshots of the index, as Datasette reads them."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from hpcdet.interop import datasette
from hpcdet.read.experiment import series
from hpcdet.read.views import views
from tests.builders import Builder


def test_a_snapshot_has_the_metrics_keys_and_search(built: Builder, tmp_path: Path) -> None:
    file = tmp_path / "digits.sqlite"
    for _ in range(2):
        datasette.snapshot(built.paths, file)
    db = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    rows = db.execute("select trial, grp, step, name, value, time, superseded from metrics")
    told = views.metrics(built.paths, superseded=True)
    want = [
        (
            *(r["trial"], r["group"], r["step"], r["name"], series.number(r["value"])),
            *(r["time"], int(r["superseded"])),
        )
        for r in told
    ]
    assert sorted(map(repr, rows)) == sorted(map(repr, want))
    assert db.execute("pragma foreign_key_check").fetchall() == []
    keys = {row[2] for row in db.execute("pragma foreign_key_list(metrics)")}
    assert keys == {"trials", "experiments"}
    found = db.execute(
        "select trial from events join events_fts on events_fts.rowid = events.rowid "
        "where events_fts match 'preempted' order by trial"
    )
    assert [row[0] for row in found] == [1, 4]
    names = {row[0] for row in db.execute("select name from sqlite_master")}
    assert "journals" not in names and "v_leaderboard" in names
    assert file.stat().st_mode & 0o077 == 0


def test_datasette_shows_tables_views_and_queries(built: Builder, tmp_path: Path) -> None:
    file = tmp_path / "digits.sqlite"
    metadata = datasette.snapshot(built.paths, file)

    def got(path: str) -> Any:
        argv = [sys.executable, "-m", "datasette", str(file), "-m", str(metadata), "--get", path]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    board = got("/digits/v_leaderboard.json?_shape=array")
    assert [(row["trial"], row["best"]) for row in board] == [(2, 0.1), (1, 0.25), (4, 0.6)]
    curve = got("/digits/curve.json?trial=1&name=loss&_shape=array")
    rows = views.metrics(built.paths, trial=1, name="loss")
    assert [(row["step"], row["value"]) for row in curve] == [(r["step"], r["value"]) for r in rows]
