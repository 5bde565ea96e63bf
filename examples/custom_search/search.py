"""A searcher of one's own as a class: each trial takes the best learning rate so far, changed."""

import math
import random

from hpcdet.search.api import Create, Report, SegmentEnd, Shutdown, Start, Stop
from hpcdet.units import Length


class HillClimb:
    def __init__(self, search):
        self.search = search
        self.factor = search["options"].get("factor", 2.0)

    def initial(self):
        return {"created": 0, "best": None, "lr": 0.1, "tried": {}}

    def on_event(self, state, event):
        match event:
            case Start():
                return state, [self.another(state)]
            case Report(trial=trial, metrics=metrics):
                value = metrics.get(self.search["metric"])
                if not isinstance(value, float) or math.isnan(value):
                    return state, [Stop(trial, "no value")]
                if state["best"] is None or value < state["best"]:
                    state["best"], state["lr"] = value, state["tried"][str(trial)]
            case SegmentEnd():
                if state["created"] < self.search["max_trials"]:
                    return state, [self.another(state)]
                return state, [Shutdown()]
        return state, []

    def another(self, state):
        state["created"] += 1
        number = state["created"]
        draw = random.Random(f"{self.search['seed']} {number}")  # the same in every replay
        lr = state["lr"] * self.factor ** draw.uniform(-1, 1)
        state["tried"][str(number)] = lr
        until = Length.decode(self.search["max_length"])
        return Create(number, {"lr": lr}, draw.randrange(2**31), until)
