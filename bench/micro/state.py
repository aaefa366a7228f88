"""What keyed state costs beside a plain dict: bytes per key, and one lookup and update. Keys are integers.

The step is a real `StatefulMap` with its `KeyedState`, the dict is kept by the loop one would write by hand with the
same function. Memory is measured in two separate processes, which differ in nothing else; time by a third, in which
both are asked in turn. ``python -m bench.micro.state --keys 10000000`` prints it for more keys than ``bench.micro``.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

from bench.micro import machine
from bench.micro.inputs import SEED
from bench.micro.timing import Spread, WrongResult, ratios, spread
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MIN_EPOCH, Control
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.stateful_map import StatefulMap

KEYS: Final = 1_000_000
BYTES_BUDGET: Final = 1.3
TIME_BUDGET: Final = 1.15
BATCH_ROWS: Final = 1024
LOOKUPS: Final = 500_000

What = Literal["dict", "step", "time"]
Take = Callable[[Batch], int]
"""Takes a batch, and returns the sum of what came of it."""


def add(key: int, value: int, total: int | None) -> tuple[int, int]:
    total = (total or 0) + value
    return total, total


def in_dict() -> tuple[MutableMapping[int, int], Take]:
    """The states, and the loop by hand."""
    states: dict[int, int] = {}
    get = states.get

    def take(batch: Batch) -> int:
        results = []
        for key, value in zip(batch.keys or (), batch.values, strict=True):
            result, states[key] = add(key, value, get(key))
            results.append(result)
        return sum(results)

    return states, take


class _Summing:
    """An outlet that sums what it is sent."""

    def __init__(self) -> None:
        self.total = 0

    def send(self, message: Batch | Control, port: int = 0) -> None:
        self.total += sum(message.values) if isinstance(message, Batch) else 0

    def forward(self, message: Control) -> None:
        """Nothing but batches comes here."""

    def passed(self) -> int:
        return MIN_EPOCH

    def drain(self) -> None:
        """What was sent has been summed."""


def a_step() -> tuple[StatefulMap, Take]:
    """The step, and what has it take a batch."""
    step, out = StatefulMap(StepContext("bench", "add", keyed=True), fn=add, default=None), _Summing()

    def take(batch: Batch) -> int:
        out.total = 0
        step.on_batch(batch, out)
        return out.total

    return step, take


def in_step() -> tuple[MutableMapping[int, int], Take]:
    """The states of a step, and the step."""
    step, take = a_step()
    return step.states, take


def filling(keys: int) -> Iterator[Batch]:
    """Each key once; the state of key k is k + 1000, a separate int."""
    for start in range(0, keys, BATCH_ROWS):
        some = list(range(start, min(start + BATCH_ROWS, keys)))
        yield Batch([key + 1000 for key in some], keys=some)


def asking(keys: int, lookups: int) -> list[Batch]:
    """Keys at random, as new ints; adding 0 leaves every state unchanged, so that rounds are alike."""
    draw = random.Random(SEED).randrange
    rows = [BATCH_ROWS] * (lookups // BATCH_ROWS) + [lookups % BATCH_ROWS]
    return [Batch([0] * count, keys=[draw(keys) for _ in range(count)]) for count in rows if count]


def resident_bytes() -> int:
    """The resident size of this process: now where the system reports it, else the largest so far."""
    status = Path("/proc/self/status")
    if status.is_file() and (found := re.search(r"VmRSS:\s*(\d+) kB", status.read_text())):
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def bytes_per_key(what: What, keys: int) -> float:
    """What filling takes of this process's memory."""
    states, take = in_dict() if what == "dict" else in_step()
    gc.collect()
    before = resident_bytes()
    for batch in filling(keys):
        take(batch)
    gc.collect()
    if len(states) != keys or states[keys - 1] != keys + 999:
        raise WrongResult(f"{len(states)} keys have state, of {keys}")
    return max(1, resident_bytes() - before) / keys


def seconds_per_round(keys: int, lookups: int, reps: int) -> dict[str, list[float]]:
    """Seconds for ``lookups`` lookups and updates, of the dict and of the step, round by round in turn."""
    both = {"dict": in_dict(), "step": in_step()}
    for _, take in both.values():
        for batch in filling(keys):
            take(batch)
    batches = asking(keys, lookups)
    expected = sum(key + 1000 for batch in batches for key in batch.keys or ())
    gc.collect()
    gc.freeze()
    seconds: dict[str, list[float]] = {name: [] for name in both}
    for number in range(reps + 1):
        for name, (_, take) in both.items():
            started = perf_counter()
            total = sum(map(take, batches))
            elapsed = perf_counter() - started
            if total != expected:
                raise WrongResult(f"the {name} gave {total} for {expected}")
            if number:  # the first round only warms up
                seconds[name].append(elapsed)
    return seconds


def apart(what: What, keys: int, lookups: int, reps: int) -> Any:
    """One measurement in a separate process."""
    command = [sys.executable, "-m", "bench.micro.state", "--child", what, "--keys", str(keys)]
    command += ["--lookups", str(lookups), "--reps", str(reps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WrongResult(f"measuring state ({what}) failed:\n{done.stderr}")
    return json.loads(done.stdout)


def measure_state(keys: int, reps: int, *, lookups: int = LOOKUPS) -> list[str]:
    """State beside a dict, in lines of text."""
    plain, step = (float(apart(what, keys, lookups, reps)) for what in ("dict", "step"))
    seconds: dict[str, list[float]] = apart("time", keys, lookups, reps)
    slower = ratios(seconds["step"], seconds["dict"])
    nanoseconds = {name: spread([s / lookups * 1e9 for s in each]) for name, each in seconds.items()}
    what = f"state, {keys:,} int keys"
    held = f"{what}: {step:.0f} bytes per key, a dict {plain:.0f}, {step / plain:.2f} of the dict"
    asked = f"{what}: lookup and update {_ns(nanoseconds['step'])}, a dict {_ns(nanoseconds['dict'])}"
    return [
        f"{held}, budget <= {BYTES_BUDGET}, {_verdict(step / plain, BYTES_BUDGET)}",
        f"{asked}, {slower.show()} of the dict, budget <= {TIME_BUDGET}, {_verdict(slower.median, TIME_BUDGET)}",
    ]


def _ns(figures: Spread) -> str:
    return f"{figures.median:.0f} ns"


def _verdict(figure: float, budget: float) -> str:
    return "hit" if figure <= budget else "MISS"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.micro.state", description=__doc__)
    parser.add_argument("--keys", type=int, default=KEYS, help="how many keys have state")
    parser.add_argument("--lookups", type=int, default=LOOKUPS, help="lookups and updates per round")
    parser.add_argument("--reps", type=int, default=5, help="rounds, in turn; medians are printed")
    parser.add_argument("--child", choices=("dict", "step", "time"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.child == "time":
        print(json.dumps(seconds_per_round(asked.keys, asked.lookups, asked.reps)))
    elif asked.child:
        print(json.dumps(bytes_per_key(asked.child, asked.keys)))
    else:
        print(machine.describe())
        try:
            print(*measure_state(asked.keys, asked.reps, lookups=asked.lookups), sep="\n")
        except WrongResult as error:
            print(f"WRONG RESULT: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
