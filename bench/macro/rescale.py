"""``python -m bench.macro.rescale``: a job on Ray goes 1 -> 2 -> 3 -> 2 while rows come, beside stop-and-restart.

100,000 string keys with a kilobyte of state each (``--state``). Rows come at half of what two workers take (measured
first, or ``--rate``), each with the time at which it was due: so a row that waits in front of a source that is not
polled is late too. A record's latency is the time from then to the sink. A rescale's window goes from the request to a
second after its end. Beside it, in the same session, the same job is stopped and started again at the other size,
carrying over its state as `bench.macro.keeping` says. All sinks and sources are on one machine, and share its monotonic
clock.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Final

import malstrom_py as mp
from bench.macro.arrivals import Seen, pids
from bench.macro.drawing import Panel, Span, write_svg
from bench.macro.feeding import Paced
from bench.macro.keeping import STATE_BYTES, Function, has_all, keep, keeping
from bench.macro.on_ray import ray_here, run_for, runtime, stop, verdict, wait_for, warm
from bench.macro.phases import Phases
from bench.macro.processes import Watch
from bench.macro.restarting import Restart, restarts
from bench.micro import machine
from bench.micro.timing import WrongResult

SIZES: Final = (1, 2, 3, 2)
LATENCY_MS: Final = 50.0
LATENCY_TIMES: Final = 4.0
RESTART_TIMES: Final = 20.0
SILENCE_S: Final = 1.0
STEADY_SHARE: Final = 0.95
MB_S: Final = 100.0
KEYS_S: Final = 80_000.0
FIRST_WARM_S: Final = 1.0
FIRST_COLD_S: Final = 4.0
TRANSIENT_MB: Final = 64.0
AFTER_S: Final = 1.0
STEP_NS: Final = 50_000_000


@dataclass(frozen=True, slots=True)
class Window:
    """One rescale: ``asked_ns`` to ``ended_ns``, and how long slots moved within."""

    before: int
    after: int
    report: mp.RescaleReport
    asked_ns: int
    ended_ns: int
    moving_s: float

    @property
    def name(self) -> str:
        return f"{self.before} -> {self.after}"

    @property
    def until_ns(self) -> int:
        return self.ended_ns + int(AFTER_S * 1e9)


@dataclass(frozen=True, slots=True)
class Live:
    """A job that was rescaled while it ran."""

    windows: list[Window]
    seen: Seen
    watch: Watch
    key_bytes: float
    started_ns: int
    steady_s: float


def capacity(keys: int, function: Function, seconds: float) -> float:
    """Rows a second that two workers take, all keys being there."""

    def start(folder: str) -> mp.JobHandle:
        return runtime(2).start(keeping("capacity", folder, Paced(keys, 0, "polled"), function), control=False)

    warm(3)
    return run_for(start, warm_s=1.0, seconds=seconds, ready=partial(has_all, keys)).rate


def rescale_live(keys: int, rate: int, function: Function, *, steady_s: float) -> Live:
    """Through `SIZES` while rows come at ``rate``."""
    with tempfile.TemporaryDirectory() as top, Watch(partial(pids, Path(top), "kept")) as watch:
        warm(2)
        handle = runtime(SIZES[0]).start(keeping("kept", top, Paced(keys, rate, "due"), function), control=False)
        wait_for(handle, partial(has_all, keys))
        key_bytes = (watch.peak(0, 0, monotonic_ns()) - watch.before(0, 0)) / keys
        started_ns = monotonic_ns()
        windows = list[Window]()
        for before, after in pairwise(SIZES):
            warm(2)  # idle processes for joiners
            sleep(steady_s + 1.0)
            windows.append(rescaled(handle, before, after))
            sleep(AFTER_S)
        sleep(steady_s)
        handle.stop(drain=True)
        counts = handle.wait()
        seen = Seen(Path(top))
        if not counts.read == counts.written == seen.rows:
            raise WrongResult(f"{counts.read:,} rows were read, {counts.written:,} written, {seen.rows:,} seen")
        return Live(windows, seen, watch, key_bytes, started_ns, steady_s)


def rescaled(handle: mp.JobHandle, before: int, after: int) -> Window:
    """Go to ``after`` workers."""
    with Phases(handle) as phases:
        asked_ns = monotonic_ns()
        report = handle.rescale(after)
        ended_ns = monotonic_ns()
    return Window(before, after, report, asked_ns, ended_ns, phases.seconds("moving"))


def first_record_s(keys: int, rate: int, function: Function, *, is_cold: bool) -> float:
    """From a request to the first record on a worker that joins; cold where no process waits that could be it."""
    # No idle process has this variable, so that Ray has to start one.
    environment = {"env_vars": {"MALSTROM_BENCH": str(monotonic_ns())}} if is_cold else None
    with tempfile.TemporaryDirectory() as top:
        job = keeping("first", top, Paced(keys, rate, "due"), function)
        handle = runtime(1, runtime_env=environment).start(job, control=False)
        wait_for(handle, partial(has_all, keys))
        if not is_cold:
            warm(2)
        sleep(1.0)
        asked_ns = monotonic_ns()
        handle.rescale(2)
        sleep(0.5)
        stop(handle)
        return (Seen(Path(top)).first_ns[1][0] - asked_ns) / 1e9


def tell(window: Window, live: Live, restart: Restart) -> None:
    """The figures of one rescale, with their budgets."""
    seen, report, name = live.seen, window.report, window.name
    since_ns, until_ns = window.asked_ns, window.until_ns
    steady_ns = (since_ns - int(live.steady_s * 1e9), since_ns)
    steady_p99_ms, steady_rate = seen.age_ms(0.99, *steady_ns), seen.rate(*steady_ns)
    most_ms = seen.age_ms(1.0, since_ns, until_ns)
    budget_ms = max(LATENCY_MS, LATENCY_TIMES * steady_p99_ms)
    if steady_p99_ms > LATENCY_MS:
        print(f"{name}: the job did not keep up before it was asked: the cores are busier than when it was measured")
    print(
        f"{name}: {report.duration_s:.2f} s, of which {window.moving_s:.2f} s moving; {report.moves} moves, "
        f"{report.slots} slots, {report.parts} parts, {report.keys:,} keys, {report.bytes / 1e6:.1f} MB"
    )
    say(
        name,
        f"latency: steady p99 {steady_p99_ms:.1f} ms, in the window p99 {seen.age_ms(0.99, since_ns, until_ns):.1f}, "
        f"largest {most_ms:.1f} ms",
        verdict(most_ms, round(budget_ms, 1), at_least=False),
    )
    times = restart.gap_s * 1e3 / most_ms
    say(
        name,
        f"stop-and-restart: {restart.gap_s:.2f} s without a record ({restart.written_s:.2f} s until all state was "
        f"written), oldest record {restart.oldest_ms / 1e3:.2f} s; the gap is {times:.1f} times the largest latency",
        verdict(times, RESTART_TIMES, at_least=True),
    )
    silence_s = seen.silence_s(since_ns, until_ns)
    say(name, f"longest time without a record {silence_s:.2f} s", verdict(silence_s, SILENCE_S, at_least=False))
    share = seen.rate(since_ns, until_ns) / steady_rate
    say(name, f"mean throughput {share:.2f} of steady", verdict(share, STEADY_SHARE, at_least=True))
    tell_moving(window)
    tell_new(window, live)


def tell_moving(window: Window) -> None:
    """How fast state moved: over the time in which slots did."""
    report, moving_s = window.report, max(window.moving_s, 1e-3)
    megabytes, keys = report.bytes / 1e6 / moving_s, report.keys / moving_s
    say(window.name, f"moved at {megabytes:.1f} MB/s", verdict(megabytes, MB_S, at_least=True))
    say(window.name, f"moved at {keys:,.0f} keys/s", verdict(keys, KEYS_S, at_least=True))


def tell_new(window: Window, live: Live) -> None:
    """When each joiner had its first record; and the memory of all, beyond the state that they gained."""
    if window.after > window.before:
        first_ns = min(at for at in live.seen.first_ns[window.after - 1] if at >= window.asked_ns)
        first_s = (first_ns - window.asked_ns) / 1e9
        say(
            window.name,
            f"first record on the new worker after {first_s:.2f} s",
            verdict(first_s, FIRST_WARM_S, at_least=False),
        )
    joined = range(window.before, window.after)
    gainers = list(joined) or list(range(window.after))
    gained = window.report.keys / len(gainers) * live.key_bytes
    beyond: dict[int, float] = {}
    for worker in live.watch.workers:
        peak = live.watch.peak(worker, window.asked_ns, window.until_ns)
        if peak:
            before = live.watch.before(worker, window.asked_ns)
            beyond[worker] = (peak - before - gained * (worker in gainers)) / 1e6
    detail = ", ".join(f"worker {worker} {size:+.0f}" for worker, size in beyond.items())
    say(
        window.name,
        f"memory at its peak beyond before and the state gained, MB: {detail}",
        verdict(max(beyond.values()), TRANSIENT_MB, at_least=False),
    )


def say(name: str, what: str, detail: str) -> None:
    print(f"{name}: {what}; {detail}")


def draw(path: Path, title: str, seen: Seen, started_ns: int, spans: Sequence[Span]) -> None:
    """The oldest record and the rate over time."""
    line = list(seen.line(started_ns, seen.span_ns[1], STEP_NS))
    panels = [
        Panel(f"oldest record per {STEP_NS / 1e6:g} ms, ms", {"oldest": [(at, age) for at, _, age in line]}),
        Panel("records/s", {"rate": [(at, rate) for at, rate, _ in line]}),
    ]
    write_svg(path, title, panels, spans)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.rescale", description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--state", type=int, default=STATE_BYTES, help="bytes of state of each key")
    parser.add_argument("--rate", type=int, help="rows a second; without, half of what two workers take")
    parser.add_argument("--steady", type=float, default=5.0, help="seconds before each rescale")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="where time lines go, as SVG")
    parser.add_argument("--quick", action="store_true", help="2,000 keys, slowly: whether it works, not how fast")
    given = parser.parse_args(arguments)
    keys, rate, steady_s = (2_000, 4_000, 0.5) if given.quick else (given.keys, given.rate, given.steady)
    function = partial(keep, given.state)
    print(machine.describe())
    with ray_here() as version:
        print(f"Ray {version}, workers of 0.5 CPU; {keys:,} keys of {given.state:,} bytes")
        if rate is None:
            most = capacity(keys, function, steady_s)
            rate = int(most / 2)
            print(f"2 workers take {most:,.0f} records/s")
        print(f"rows come at {rate:,} a second")
        live = rescale_live(keys, rate, function, steady_s=steady_s)
        stopped, seen, started_ns = restarts(SIZES, keys, rate, state_bytes=given.state, steady_s=steady_s)
        for window, restart in zip(live.windows, stopped, strict=True):
            tell(window, live, restart)
        cold_s = first_record_s(min(keys, 10_000), min(rate, 10_000), function, is_cold=True)
        say("cold", f"first record on a new worker after {cold_s:.2f} s", verdict(cold_s, FIRST_COLD_S, at_least=False))
    spans = [
        Span(window.name, (window.asked_ns - live.started_ns) / 1e9, (window.ended_ns - live.started_ns) / 1e9)
        for window in live.windows
    ]
    draw(given.out / "rescale.svg", "Rescales while rows come", live.seen, live.started_ns, spans)
    draw(given.out / "restart.svg", "The same by stop-and-restart", seen, started_ns, ())
    print(f"load at the end {os.getloadavg()[0]:.1f}; time lines in {given.out}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
