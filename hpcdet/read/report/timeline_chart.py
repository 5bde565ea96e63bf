"""The timeline: one lane per trial, a bar per span, ticks for checkpoints, a mark per end."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdet import units
from hpcdet.read.report.scale import Scale, times
from hpcdet.read.sections.time_spent import LaneView
from hpcdet.read.sections.time_spent import TimelineSection as Section
from hpcdet.read.usage.spans import KINDS

WIDTH = 960
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 8, 28
LANE = 22
TICK_GAP = 4.0
"""Least distance of two ticks; of a dense row of checkpoints, every so many are drawn."""
MARKS = {
    "completed": "✓",
    "stopped": "■",
    "paused": "‖",
    "preempted": "↺",
    "walltime": "◷",
    "resized": "↗",
    "canceled": "⊘",
}
"""Sign of each end; whatever else ended an attempt went wrong: ``✗``."""
WRONG = "✗"


@dataclass(frozen=True)
class SpanBar:
    """A span of time of one kind, as a bar."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True)
class ChartMark:
    """A moment, as a sign."""

    x: float
    sign: str
    title: str


@dataclass(frozen=True)
class ChartLane:
    """The line of one trial."""

    trial: int
    y: float
    bars: list[SpanBar]
    checkpoints: list[ChartMark]
    ends: list[ChartMark]


@dataclass(frozen=True)
class Timeline:
    """The template's data on the lanes."""

    lanes: list[ChartLane]
    kinds: dict[str, str]
    """What its colours mean, of those that occur."""
    signs: dict[str, str]
    """What its signs mean, likewise."""
    left_out: int
    x_ticks: list[tuple[float, str]]
    length: str
    height: float
    bottom: float
    width: int = WIDTH
    left: int = LEFT
    right: int = WIDTH - RIGHT
    lane: int = LANE


def timeline(section: Section) -> Timeline | None:
    """Return the drawing of the section ``timeline``; None if nothing has happened yet."""
    if not section.lanes:
        return None
    x = Scale(0.0, section.length_s, LEFT, WIDTH - RIGHT)
    lanes = [_lane(lane, TOP + LANE * n, x) for n, lane in enumerate(section.lanes)]
    bottom = TOP + LANE * len(lanes)
    drawn = {bar.kind for lane in lanes for bar in lane.bars}
    signs = {mark.sign for lane in lanes for mark in lane.ends}
    words = {sign: reason for reason, sign in MARKS.items()} | {WRONG: "failed or lost"}
    return Timeline(
        lanes=lanes,
        kinds={kind: word for kind, word in KINDS.items() if kind in drawn},
        signs={sign: word for sign, word in words.items() if sign in signs},
        left_out=section.left_out,
        x_ticks=[(x(tick), units.duration(tick)) for tick in times(section.length_s)],
        length=units.duration(section.length_s),
        height=bottom + BOTTOM,
        bottom=bottom,
    )


def _lane(lane: LaneView, y: float, x: Scale) -> ChartLane:
    bars = [
        SpanBar(
            span.kind,
            x(span.start),
            round(max(x(span.end) - x(span.start), 0.5), 2),
            f"trial {lane.trial}, attempt {span.attempt}: "
            f"{KINDS[span.kind].lower()}, {units.duration(span.end - span.start)}",
        )
        for span in lane.spans
    ]
    checkpoints: list[ChartMark] = []
    for time in lane.checkpoints:
        if not checkpoints or x(time) - checkpoints[-1].x >= TICK_GAP:
            checkpoints.append(ChartMark(x(time), "", f"checkpoint after {units.duration(time)}"))
    ends = [
        ChartMark(
            x(end.at),
            MARKS.get(end.reason, WRONG),
            f"attempt {end.attempt} ended: {end.reason.replace('_', ' ')}",
        )
        for end in lane.ends
    ]
    return ChartLane(lane.trial, y, bars, checkpoints, ends)
