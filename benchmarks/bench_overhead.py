"""``make bench-overhead``: what a step costs beyond the loop that one writes by hand.

The same model and data in

- a hand-written loop without metrics on disk, checkpoints or any way to go on: what all others
  are compared with; a second one beside it shows the noise;
- hpcdet's PyTorchTrial and Core API with metrics, cursor, preemption check, profile and periodic
  checkpoints on;
- Lightning Fabric, and Determined's Trainer in local mode, both without any of these;
- with one rank and long steps, a hand-written loop that also calls ``torch.save`` as often as
  hpcdet makes a checkpoint, and one that leaves the allocator as it is.

It is measured in two ways. *In one process*, the hand-written loop and Fabric's train inside of
hpcdet's own, on its very model, optimizer and samples, so that only what the loops do is left
between them: one step of 20 ms of each, in an order that is drawn for each round, and hundreds of
rounds. Beside the clock there is the time of the processor, which others on the machine change
little (``overhead/paired.py`` says of which threads). A tenth of the rounds at either end does
not count; the last one has a whole block and a checkpoint, and counts a tenth. What is due every
second or two falls due two or three times too often for hpcdet, whose share of the time is a half
or a third. What hpcdet changes in torch and its allocator changes all loops alike. So there is a
second way.

*Side by side*, all live as processes at the same time and train short blocks of steps in turn, in
an order that changes by the round. Two methods are compared within a round, since a machine's speed
wanders by more than what is looked for here. After some rounds all processes end and others begin,
which is a group: what one process is slower than its equal is a matter of where its memory lies,
and lasts as long as it does. Groups are what bounds are made of (``processes.ratio``, 95 %), and
goals are judged by them; that start-up takes seconds is not counted.

Each makes its checkpoint in the middle of the last block of a group, so that what is written
beside the training is written in its own time. That block counts as one of ten: of long steps, as
a checkpoint every 300 steps of 20 ms. Blocks of long steps take more than half a second: what is
due every second or two falls due while the others train, so short blocks would hold it far oftener
than training does. Steps in the table are medians. Each rank has one thread.

All have the allocator keep the memory that a step frees, as hpcdet does by itself, with the same
numbers: else chance decides how many page faults a step has, hundreds or none, and that is more
than what is measured here. So it makes no difference between them; how much it is, the
hand-written loop without it shows.

The peers live in ``~/.cache/hpcdet-bench/peers``, which shares torch with hpcdet's environment.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import processes  # noqa: E402
import results  # noqa: E402
from overhead_loops import (  # noqa: E402
    BARE,
    BESIDES,
    CLOCKS,
    METHODS,
    OURS,
    PEERS,
    VENV,
    Blocks,
    PairedRun,
    Run,
    Step,
    measure,
    measure_paired,
)

GOAL = 1.01
"""Of long steps: of the hand-written loop's, and of the peer's that does as little."""
CYCLE = 10
"""A checkpoint is made every so many blocks."""
LONG = Step("20 ms", 1200, 128, 30, 1, GOAL)
SHORT = Step("2 ms", 320, 64, 150, 10, 1.05)


def compared(ours: Sequence[float], peer: Sequence[float]) -> float:
    """One group's ratio of two methods; in its last block is the checkpoint."""
    quiet = processes.within(ours[:-1], peer[:-1])
    return float((quiet * (CYCLE - 1) + ours[-1] / peer[-1]) / CYCLE)


def _rows(blocks: Blocks, run: Run, how: str = "") -> list[results.Row]:
    """All against the hand-written loop, and hpcdet against each of the others that do as much."""
    ours = [name for name in OURS if name in blocks]
    pairs = [(name, BARE) for name in blocks if name != BARE]
    pairs += [(name, peer) for peer in PEERS if peer in blocks for name in ours]
    return [_row(*pair, blocks, run, how) for pair in pairs]


def _row(name: str, peer: str, blocks: Blocks, run: Run, how: str) -> results.Row:
    ours, others = blocks[name], blocks[peer]
    found = processes.ratio([compared(*pair) for pair in zip(ours, others, strict=True)])
    goal, said = None, found.rank()
    if name in OURS and peer == "Lightning Fabric":
        goal, said = GOAL, found.against(GOAL)
    elif name in OURS and peer in PEERS:
        goal = 1.0
    elif name in OURS and run.step.goal is not None:
        goal, said = run.step.goal, found.against(run.step.goal)
    row: results.Row = {
        "what": f"{name}, {run.step.name}, {run.world} rank{'s' if run.world > 1 else ''}{how}",
        "unit": "s",
        "ratio": round(found.value, 4),
        "peer_name": peer,
        "low": round(found.low, 4),
        "high": round(found.high, 4),
        "goal": goal,
        "met": None if goal is None else said in ("met", "ahead"),
        "said": said,
        "runs": run.groups,
        "rounds": run.rounds,
    }
    for whose, times in (("ours", ours), ("peer", others)):
        every = [step for group in times for step in group]
        row |= {whose: statistics.median(every), f"{whose}_least": min(every)}
    return row


def paired(run: PairedRun, beside: Sequence[str]) -> list[results.Row]:
    """The rows of loops that train inside of one process, by both clocks."""
    rows: list[results.Row] = []
    for name in OURS:
        for clock, blocks in zip(CLOCKS, measure_paired(name, beside, run), strict=True):
            rows += _rows(blocks, run, f", in {name}'s process{clock}")
    return rows


def _print(rows: Sequence[results.Row]) -> None:
    width = max(len(row["what"]) for row in rows) + 2
    print(f"{'what':<{width}}{'step':>9}{'than':>9}{'ratio':>8}{'95 %':>14}")
    for row in rows:
        interval = f"{row['low']:.3f}-{row['high']:.3f}"
        goal = "" if row["goal"] in (None, 1.0) else f"{row['goal']}: "
        print(
            f"{row['what']:<{width}}{1e3 * row['ours']:>6.2f} ms{1e3 * row['peer']:>6.2f} ms"
            f"{row['ratio']:>8.3f}{interval:>14}  {row['peer_name']:<18}{goal}{row['said']}",
            flush=True,
        )


# -- the peers' environment --------------------------------------------------------------------


def _prepare() -> list[str]:
    """Install the peers, if they are not; the methods that can run."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        alone = ["lightning-fabric", "lightning-utilities", "fsspec", "packaging"]
        subprocess.run([*pip, "determined", "tensorboard"], check=False)
        subprocess.run([*pip, "--no-deps", *alone, "typing-extensions"], check=False)
        site = next((VENV / "lib").glob("python*")) / "site-packages"
        # torch comes from here, behind all that the peers brought
        paths = {sysconfig.get_paths()["purelib"], *(p for p in sys.path if "site-packages" in p)}
        (site / "zz-torch.pth").write_text("\n".join(sorted(paths)) + "\n")
    found = list(METHODS)
    for method, module in zip(PEERS, ("lightning_fabric", "determined"), strict=True):
        argv = [python, "-c", f"import {module}"]
        if subprocess.run(argv, capture_output=True, check=False).returncode:
            print(f"{method} cannot be installed here and is left out", file=sys.stderr)
            found.remove(method)
    return found


def main() -> int:
    """Measure, print, write; exit 0 also where a goal was missed (the table says so)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few groups of few rounds")
    parser.add_argument("--groups", type=int, default=12, help="times that processes begin")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of blocks, of all groups")
    parser.add_argument("--steps", type=int, default=3600, help="of each loop in one process")
    parser.add_argument("--world", type=int, action="append", help="only so many ranks")
    parser.add_argument("--step", action="append", help="only steps of '20 ms' or '2 ms'")
    parser.add_argument("--only", choices=("inside", "beside"), help="one way of measuring")
    parser.add_argument("--add", action="store_true", help="keep the rows of other calls")
    given = parser.parse_args()
    groups = processes.LEAST if given.quick else given.groups
    if groups < processes.LEAST:
        parser.error(f"--groups: at least {processes.LEAST}")
    names = _prepare()
    rows = results.written("overhead") if given.add else []
    for step in (LONG, SHORT):
        for world in given.world or (1, 2):
            if given.step and step.name not in given.step:
                continue
            made: list[results.Row] = []
            if given.only != "beside":
                rounds = 30 if given.quick else given.steps // groups // step.turn
                fabric = [one for one in names if one == "Lightning Fabric"]
                made += paired(PairedRun(step, world, groups, rounds), fabric)
            if given.only != "inside":
                rounds = 3 if given.quick else max(3, given.rounds // groups)
                run = Run(step, world, groups, rounds)
                besides = BESIDES if step is LONG and world == 1 else ()
                made += _rows(measure([*names, *besides], run), run)
            _print(made)
            new = {(row["what"], row["peer_name"]) for row in made}
            rows = [row for row in rows if (row["what"], row["peer_name"]) not in new] + made
            results.write("overhead", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
