"""Views, index and logs of experiments made of records."""

from __future__ import annotations

import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpcdet.errors import IntegrityError, NotFound
from hpcdet.read.experiment import gather, series, states
from hpcdet.read.index import database
from hpcdet.read.index.tables import TABLES
from hpcdet.read.lookup import find, lineage
from hpcdet.read.views import describe, views
from hpcdet.read.views.items import encode
from hpcdet.read.views.trials import BestView
from hpcdet.search.api import codec
from hpcdet.search.api import events as api
from hpcdet.store.decisions import lease
from hpcdet.store.folder import records
from hpcdet.store.fs import beat_age, files
from hpcdet.store.trials.controls import BY_USER
from hpcdet.units import Length
from tests.builders import Builder, put, sweep


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


# -- find --------------------------------------------------------------------------------


def test_an_experiment_is_found_by_whatever_stands_for_it(swept: Builder, tmp_path: Path) -> None:
    root, paths = tmp_path, swept.paths
    log = paths.trial(3).attempt(2).log(0)
    for text, trial, attempt in [
        ("digits-7f3a", 0, 0),
        ("dig", 0, 0),
        ("@last", 0, 0),
        ("@last/2", 2, 0),
        ("dig/3.2", 3, 2),
        ("123", 0, 0),
        ("slurm:123_4", 0, 0),
        (str(paths.root), 0, 0),
        (str(log), 3, 2),
    ]:
        assert find.reference(text, root) == find.Reference(paths, trial, attempt), text
    swept.job("local-660ca510cded3-9190")
    assert find.reference("local-660ca510cded3-9190_0", root).paths == paths
    assert find.trial("dig/2", root).number == 2
    assert find.attempt("dig/3", root).number == 2


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mnist", "no such experiment"),
        ("digits", "2 experiments fit"),
        ("digits-7/9", "no trial 9"),
        ("digits-7/1.7", "no attempt 7"),
        ("a/b/c", "no such experiment"),
        ("99", "no such experiment"),
    ],
)
def test_what_is_not_found_or_ambiguous_says_so(
    swept: Builder, tmp_path: Path, text: str, what: str
) -> None:
    Builder(tmp_path / "digits-9c00")
    with pytest.raises(NotFound, match=what):
        find.reference(text, tmp_path)


def test_a_root_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert find.experiments(tmp_path / "none") == []
    with pytest.raises(NotFound):
        find.reference("@last", tmp_path / "none")


def test_folders_of_others_are_left_out(
    swept: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = Builder(tmp_path / "private-0000").paths.config
    lstat = os.lstat

    def denied(path: Any) -> os.stat_result:
        if Path(path) == private:
            raise PermissionError(13, "Permission denied", str(path))
        return lstat(path)

    monkeypatch.setattr(os, "lstat", denied)
    assert find.experiments(tmp_path) == [swept.paths]


# -- states ------------------------------------------------------------------------------


def test_states_follow_from_the_files(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")

    def state() -> str:
        return views.status(built.paths).state

    def trial_state(number: int) -> str:
        return views.trials(built.paths)[number - 1].state

    assert state() == "PENDING"
    trial = built.trial()
    assert (state(), trial_state(1)) == ("PENDING", "PENDING")
    attempt = trial.attempt()
    assert (state(), trial_state(1)) == ("RUNNING", "RUNNING")
    built.command("pause")
    assert state() == "STOPPING"
    built.decide("command", seq=1, verb="pause")
    built.decide("state", state="STOPPING", why="paused by its user", by="")
    trial.control("pause")
    assert (state(), trial_state(1)) == ("STOPPING", "STOPPING")
    attempt.end("paused")
    built.decide("state", state="PAUSED", why="paused by its user", by="")
    assert (state(), trial_state(1)) == ("PAUSED", "PAUSED")
    assert not views.status(built.paths).stuck
    built.command("resume")
    assert state() == "RUNNING"
    built.decide("command", seq=2, verb="resume")
    built.decide("state", state="PAUSED", why="the searcher failed", by="searcher")
    status = views.status(built.paths)
    assert (status.state, status.stuck) == ("PAUSED", True)
    built.command("cancel")
    assert state() == "STOPPING"
    trial.control("kill")
    built.close("CANCELED", "canceled by its user")
    assert (state(), trial_state(1)) == ("CANCELED", "CANCELED")


def test_only_a_trial_that_the_search_ended_early_is_stopped(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    for reason, actions in (
        ("stopped", ["stop"]),  # it heard while it trained
        ("paused", ["pause", "stop"]),  # it waited at a rung
        ("stopped", ["stop", "pause"]),  # in a fork, whose search may still let it go on
        ("stopped", []),  # its own code asked for it
        ("completed", ["stop"]),  # it had come to its length
    ):
        trial = built.trial()
        trial.attempt().end(reason)
        for action in actions:
            trial.control(action)
    item = views.status(built.paths)
    assert [row.state for row in item.trials] == ["STOPPED"] * 3 + ["COMPLETED"] * 2
    assert describe.ended(item) == "5/5 trials ended, 3 of them stopped early"


def test_a_trial_that_can_never_run_any_more_is_not_pending(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    built.trial()
    built.close("ERROR", "the searcher gave up")
    assert views.trials(built.paths)[0].state == "ERROR"


def test_health_tells_waiting_from_abandoned(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    now = time.time()

    def health(later_s: float = 0) -> str:
        return states.health(gather.gather(built.paths), now + later_s)["health"]

    assert health() == "stalled"
    built.job()
    assert health() == "queued"
    built.worker()
    assert health() == "ok"
    assert health(later_s=10 * states.FRESH_S) == "stalled"
    built.close()
    assert health(later_s=10 * states.FRESH_S) == "ok"


@pytest.mark.parametrize("ahead_s", [-600, 600])
def test_who_lives_is_seen_alive_whatever_the_clock_of_the_file_server(
    tmp_path: Path, ahead_s: float
) -> None:
    """And who is dead is not alive for longer, because the files are from the future."""
    built, now = Builder(tmp_path / "digits-7f3a"), time.time()
    built.worker()
    beat, term = built.paths.worker(1, 0, 0).beat, lease.beat_path(built.paths, 1)

    def health(silent_s: float) -> tuple[str, float | None]:
        at = datetime.fromtimestamp(now - silent_s, UTC).isoformat()
        beat.write_bytes(files.canonical({"at": at}))
        put(built.paths.term(1), lease.Term(1, "worker", "n1", 1, at))
        put(term, lease.Beat("ab", at=at))
        stamped = now - silent_s + ahead_s
        for path in (beat, term, built.paths.term(1)):
            os.utime(path, (stamped, stamped))
        gathered = gather.gather(built.paths)
        assert states.leaving(gathered) is (silent_s < states.FRESH_S)
        found = states.health(gathered, now)
        return found["health"], found["last_turn_s"]

    assert health(30) == ("ok", 30)
    assert health(2 * states.FRESH_S) == ("stalled", 2 * states.FRESH_S)


def test_a_beat_whose_clocks_are_both_ahead_is_new(tmp_path: Path) -> None:
    beat = tmp_path / "beat.json"
    assert beat_age.age_s(beat) is None
    beat.write_bytes(b'{"at": "2026-03-01T12:00:00Z"}')
    assert beat_age.age_s(beat, beat.stat().st_mtime + 5) == pytest.approx(5)
    assert beat_age.age_s(beat, 0.0) == 0
    for damaged in (b"", b"[1]", b'{"at": 7}', b'{"at": "2026-03-01T12:00:00"}', b"{" * 100_000):
        beat.write_bytes(damaged)
        assert beat_age.age_s(beat, beat.stat().st_mtime + 5) == pytest.approx(5)


def test_a_requeued_task_that_waits_for_long_is_no_stall(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    long = time.time() + 10 * states.FRESH_S

    def health() -> dict[str, Any]:
        return states.health(gather.gather(built.paths), long)

    built.job()
    worker = built.paths.worker(1, 0, 0)
    built.worker()
    assert health()["health"] == "stalled"
    put(worker.end, records.WorkerEnd("signal", worker.name, built.tick(), returns=True))
    assert (health()["health"], health()["why"]) == ("queued", "1 task should wait in the queue")
    again = built.paths.worker(1, 0, 1)
    put(again.claim, records.WorkerClaim("123", "n1", 1, ["n1"], 1, at=built.tick()))
    assert health()["health"] == "stalled"  # it came back, and is silent
    put(built.paths.term(1), lease.Term(1, "worker", "n1", 1, built.tick()))
    told = lease.Beat("ab", True, at=built.tick(), waiting=2)
    put(lease.beat_path(built.paths, 1), told)
    os.utime(lease.beat_path(built.paths, 1), (0, 0))
    assert (health()["health"], health()["why"]) == ("queued", "2 tasks should wait in the queue")
    for place in (1, 2):
        late = built.paths.worker(1, place, 0)
        put(late.claim, records.WorkerClaim("123", "n1", 1, ["n1"], at=built.tick()))
    assert health()["health"] == "stalled"


def test_it_is_over_when_it_is_closed_and_not_before(tmp_path: Path) -> None:
    built = sweep(tmp_path / "digits-7f3a", ended=False)
    built.decide("state", state="COMPLETED", why="all good", by="")
    assert views.status(built.paths).state == "STOPPING"
    built.close()
    assert views.status(built.paths).state == "COMPLETED"


# -- views -------------------------------------------------------------------------------


def test_status_counts_what_the_trials_did(swept: Builder) -> None:
    status = views.status(swept.paths)
    assert (status.state, status.best) == (
        "COMPLETED",
        BestView(trial=2, value=0.1, step=100),
    )
    told = {t.trial: (t.state, t.steps, t.best, t.restarts) for t in status.trials}
    assert told == {
        1: ("COMPLETED", 300, 0.25, 1),
        2: ("COMPLETED", 300, 0.1, 0),
        3: ("ERROR", 20, None, 1),
    }


def test_a_trial_that_was_promoted_was_not_restarted(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    one, two = built.trial(), built.trial()
    for action, why in [
        ("run", ""),
        ("pause", "rung 1 of 3: rank 2 of 4"),
        ("pause", BY_USER),
        ("pause", "rung 1 of 3: rank 2 of 4"),  # its user lets it go on, the search does not
        ("run", "rank 1 of 4 now"),
        ("pause", BY_USER),
        ("run", ""),
    ]:
        one.control(action, why=why)
    for reason in ("preempted", "paused", "released", "lost", "paused", "completed"):
        one.attempt().end(reason)
    two.control("run")
    two.control("run", Length("batches", 600))
    for reason in ("completed", "completed"):  # the search was made longer
        two.attempt().end(reason)
    rows = views.trials(built.paths)
    told = {t.trial: (t.restarts, t.promotions, t.attempts) for t in rows}
    assert told == {1: (2, 1, 6), 2: (0, 1, 2)}


def test_larger_is_better_where_the_config_says_so(tmp_path: Path) -> None:
    searcher = {"name": "random", "metric": "accuracy", "smaller_is_better": False}
    built = Builder(tmp_path / "digits-7f3a", searcher=searcher)
    for value in (0.5, 0.9, 0.7):
        built.trial().attempt().metrics("validation", 10, accuracy=value)
    best = views.status(built.paths).best
    assert best == BestView(trial=2, value=0.9, step=10)


def test_attempts_say_why_they_ended_and_where_they_began(swept: Builder) -> None:
    told = [
        (a.trial, a.attempt, a.reason, a.from_step, a.steps, a.job)
        for a in views.attempts(swept.paths)
    ]
    assert told == [
        (1, 1, "preempted", 0, 150, "123_0"),
        (1, 2, "completed", 100, 300, "123_0"),
        (2, 1, "completed", 0, 300, "123_0"),
        (3, 1, "user_error", 0, 20, "123_0"),
        (3, 2, "user_error", 0, 20, "123_0"),
    ]
    first = views.attempts(swept.paths)[0]
    assert first.duration_s == pytest.approx(10)
    assert {"id", "start", "end"} <= encode(first).keys()


def test_the_highest_attempt_has_the_last_word(swept: Builder) -> None:
    def rows(**more: Any) -> list[tuple[int, Any, int, bool]]:
        found = views.metrics(swept.paths, trial=1, name="loss", **more)
        return [(r["step"], r["value"], r["attempt"], r["superseded"]) for r in found]

    assert rows() == [
        (50, 1 / 50, 1, False),
        (100, 1 / 100, 1, False),
        (150, 2 / 150, 2, False),
        (200, 2 / 200, 2, False),
        (300, 2 / 300, 2, False),
    ]
    assert rows(superseded=True)[2] == (150, 1 / 150, 1, True)


def test_nan_is_shown_and_is_never_best(swept: Builder) -> None:
    rows = views.metrics(swept.paths, trial=2, name="validation_loss")
    assert [row["value"] for row in rows] == [0.1, "NaN"]
    [best] = series.best(rows, smaller_is_better=True)
    [last] = series.last(rows)
    assert (best["step"], last["step"]) == (100, 300)


def test_checkpoints_are_what_lies_there(swept: Builder) -> None:
    trial = swept.paths.trial(1)
    (trial.checkpoint(300, 2)).rename(trial.checkpoints / ".bad-00000300.g2")
    (trial.checkpoint(200, 2)).mkdir()
    rows = {row.name: row for row in views.checkpoints(swept.paths, 1)}
    assert {name: row.state for name, row in rows.items()} == {
        "00000100.g1": "complete",
        "00000200.g2": "partial",
        "00000300.g2": "damaged",
    }
    first = rows["00000100.g1"]
    assert (first.step, first.bytes, first.digest) == (100, 100, "d" * 64)
    assert Path(first.path).is_dir() and Path(rows["00000300.g2"].path).is_dir()


def test_events_are_in_order_and_of_one_trial_if_asked(swept: Builder) -> None:
    events = views.events(swept.paths)
    assert [e.time for e in events] == sorted(e.time for e in events)
    kinds = [e.kind for e in views.events(swept.paths, 1)]
    assert kinds[:5] == ["started", "start", "first_step", "checkpoint", "notice"]
    assert {"submitted", "worker_started", "failed", "state"} <= {e.kind for e in events}


def test_decisions_are_told_with_their_reason(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    until, why = Length("batches", 9), "rung 1 of 2 (3 batches): rank 1 of 4"
    for action in (
        api.Create(1, {}, 7, until, why="bracket 1"),
        api.Create(2, {}, 7, None),
        api.Pause(1, why),
        api.Continue(1, until, why),
    ):
        built.decide("action", action=codec.encode_action(action))
    assert [event.text for event in views.events(built.paths)] == [
        "made, to train 9 batches: bracket 1",
        "made, to train as long as the code says",
        f"pause: {why}",
        f"to go on until 9 batches: {why}",
    ]


def test_a_folder_in_any_half_way_state_can_be_looked_at(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    trial = built.trial()
    (trial.paths.attempt(1).root).mkdir(parents=True)
    built.paths.trial(2).root.mkdir()
    records.Intent(1, "n", "t", 1, 1, 1).write_once(built.paths.intent(1))
    broken = built.paths.worker(1, 0, 0).root
    broken.mkdir(parents=True)
    (broken / "claim.json").write_text('{"job": "1')
    shown = views.show(built.paths)
    assert len(shown.trials) == 2
    assert views.events(built.paths) == []


def test_labels_change_with_commands(swept: Builder) -> None:
    swept.command("tag", add=["paper"], rm=["example"])
    assert views.brief(swept.paths).labels == ["paper"]


def test_a_moved_folder_says_the_same(swept: Builder, tmp_path: Path) -> None:
    def tables() -> list[Any]:
        database.rebuild(swept.paths)
        return [database.query(swept.paths, f"select * from {name}") for name in TABLES]

    before = tables()
    (tmp_path / "elsewhere").mkdir()
    moved = swept.paths.root.rename(tmp_path / "elsewhere" / swept.paths.id)
    swept.paths = find.experiment(str(moved), tmp_path)
    assert database.differences(swept.paths) == []
    assert tables() == before


# -- index -------------------------------------------------------------------------------

ATTEMPT = st.lists(
    st.tuples(
        st.sampled_from(["training", "validation"]),
        st.integers(0, 5),
        st.dictionaries(
            st.sampled_from(["loss", "validation_loss"]), st.floats(width=32), min_size=1
        ),
    ),
    max_size=6,
)


def _one(value: float) -> list[list[tuple[str, int, dict[str, float]]]]:
    return [[("validation", 0, {"validation_loss": value})]]


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@example(trials=[_one(1.0), _one(-math.inf)])
@given(trials=st.lists(st.lists(ATTEMPT, min_size=1, max_size=3), min_size=1, max_size=2))
def test_the_index_gives_the_same_answers_and_is_rebuilt_alike(
    trials: list[list[list[tuple[str, int, dict[str, float]]]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    built = Builder(tmp_path_factory.mktemp("index") / "digits-7f3a")
    for attempts in trials:
        trial = built.trial()
        for lines in attempts:
            attempt = trial.attempt()
            for group, step, values in lines:
                attempt.metrics(group, step, **values)
            attempt.end("preempted")
    built.close()

    def answers() -> tuple[Any, ...]:
        database.rebuild(built.paths)
        metrics = database.query(
            built.paths,
            "select * from metrics where not superseded order by trial, attempt, n",
        )
        best = database.query(built.paths, "select trial, best from v_leaderboard limit 1")
        return metrics, best

    metrics, best = answers()
    expected = views.metrics(built.paths)
    assert [(r["trial"], r["grp"], r["step"], r["name"], r["attempt"]) for r in metrics] == [
        (r["trial"], r["group"], r["step"], r["name"], r["attempt"]) for r in expected
    ]
    assert [r["value"] for r in metrics] == [series.number(r["value"]) for r in expected]
    top = views.status(built.paths).best
    assert [(b["trial"], b["best"]) for b in best if _finite(b["best"])] == (
        [(top.trial, top.value)] if top and _finite(top.value) else []
    )
    built.paths.index.unlink()
    assert answers() == (metrics, best)


def _finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def test_until_of_the_control_in_force_is_shown(tmp_path: Path) -> None:
    trial = Builder(tmp_path / "digits-7f3a").trial()
    trial.control("run", until=Length("batches", 900))
    [row] = views.trials(trial.experiment.paths)
    assert row.until == Length("batches", 900)


def test_trials_are_looked_up_not_searched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of trials a search for each one is the square of them."""
    built = Builder(tmp_path / "many-0001")
    for _ in range(40):
        built.trial()
    asked: list[int] = []
    number = gather.GatheredTrial.number.fget
    assert number is not None
    monkeypatch.setattr(
        gather.GatheredTrial, "number", property(lambda self: asked.append(1) or number(self))
    )
    gathered = gather.gather(built.paths)
    for trial in range(1, 41):
        assert views.attempts(gathered, trial) == []
    assert len(asked) == 40 and gathered.trial(41) is None


# -- files that hpcdet never writes ------------------------------------------------------------


def test_a_link_to_itself_hides_no_experiment(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    assert [one.id for one in find.experiments(tmp_path)] == [built.paths.id]
    assert find.experiment("@last", tmp_path).id == built.paths.id
    with pytest.raises(NotFound):
        find.experiment("loop", tmp_path)


def test_trials_that_are_each_others_parents_end_no_search_for_the_first(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-7f3a")
    origin = {"units": {"batches": 100}, "checkpoint": "00000100.g1", "root": "r"}
    for number, parent in ((1, 2), (2, 1)):
        built.trial()
        put(
            built.paths.trial(number).record,
            records.Trial(number, {}, 7, parent=f"{parent}@100 batches", origin=origin),
        )
    with pytest.raises(IntegrityError, match="its own ancestor"):
        lineage.chain(gather.gather(built.paths), 1)
