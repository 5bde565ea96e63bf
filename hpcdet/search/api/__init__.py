"""The interface of search methods: events in, actions out.

A program of the user's imports these names from here. A module belongs here if every search method
builds on it: events and actions, their codec, ranking, and the seam to samplers.
"""

from hpcdet.search.api.events import (
    Action,
    Ask,
    Continue,
    Create,
    Event,
    Halt,
    Limits,
    Pause,
    Report,
    Searcher,
    SegmentEnd,
    Shutdown,
    Start,
    State,
    Stop,
)

__all__ = [
    "Action",
    "Ask",
    "Continue",
    "Create",
    "Event",
    "Halt",
    "Limits",
    "Pause",
    "Report",
    "Searcher",
    "SegmentEnd",
    "Shutdown",
    "Start",
    "State",
    "Stop",
]
