"""What carries batches between workers: ZeroMQ plain, with CURVE, and as our transport; Arrow Flight; Ray calls.

Run with ``python -m bench.micro.transport``; it prints the tables of docs/design/0010-transport.md. Each way is between
two processes of this machine, in turn, round by round; medians are shown, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.micro import links, machine
from bench.micro.__main__ import show
from bench.micro.timing import spread

NAMES = ("ZeroMQ plain", "ZeroMQ CURVE", "transport", "Arrow Flight", "Ray calls")
SIZES = {"1 KB": 1 << 10, "64 KB": 1 << 16, "1 MB": 1 << 20}
SENT = {"1 KB": 20_000, "64 KB": 4_000, "1 MB": 400}
WINDOW_BYTES = 16 << 20
WINDOW_MAX = 256
BUSY_S = 0.001
SWITCH_S = BUSY_S / 2
"""How long a thread has the GIL when others want it. In the receiver less than what it computes between two looks: it
releases the GIL to look and takes it again immediately, so a thread that needs more time waits for many looks."""
PATIENCE_S = 30.0
"""For an answer, and for what starts or ends."""
PATIENCE_WITH_SIZE_S = 600.0
"""For the figures of one size."""

DATA, ECHO, START, RESULT, BUSY, IDLE, END = b"D", b"E", b"S", b"R", b"B", b"I", b"Q"


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one way at one size: messages per second, processor time per message at both ends, round trips to a receiver
    that waits and to one that computes (median, 99th percentile)."""

    rate: float
    sender_us: float
    receiver_us: float
    idle_us: tuple[float, float]
    busy_us: tuple[float, float]


Measured = Callable[[links.Link], Figures]


def spin(seconds: float) -> None:
    """Compute in Python for so long."""
    end = time.perf_counter() + seconds
    n = 0
    while time.perf_counter() < end:
        n += 1


def serve(link: links.Link) -> None:
    """The receiver: a worker that takes what has come between two steps, which take no time or `BUSY_S` each."""
    busy, count, taken, cpu_s = False, 0, 0, 0.0
    while True:
        if busy:
            spin(BUSY_S)
        for message in link.take(0.0 if busy else 1.0):
            kind = message[:1]
            if kind == DATA:
                count += 1
                taken += len(message)
                if taken >= WINDOW_BYTES // 8 or count % (WINDOW_MAX // 8) == 0:
                    taken = 0
                    link.send(RESULT + pickle.dumps(count))
            elif kind == ECHO:
                link.send(message)
            elif kind == START:
                count, cpu_s = 0, time.process_time()
                link.send(message)
            elif kind == END:
                return
            elif kind == RESULT:
                link.send(RESULT + pickle.dumps((count, time.process_time() - cpu_s)))
            else:
                busy = kind == BUSY


class Taker:
    """What comes back, one by one."""

    def __init__(self, link: links.Link) -> None:
        self._link = link
        self._waiting: list[bytes] = []

    def next(self, what: str) -> bytes:
        deadline = time.monotonic() + PATIENCE_S
        while not self._waiting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the receiver has not sent {what} for {PATIENCE_S:.0f} s")
            self._waiting.extend(self._link.take(1.0))
        return self._waiting.pop(0)


def drive(link: links.Link, size: int, sent: int, trips: int) -> Figures:
    """The sender: measures."""
    taker = Taker(link)
    link.send(START)
    taker.next("its start")
    window = max(2, min(WINDOW_MAX, WINDOW_BYTES // size))
    data = DATA + bytes(size - 1)
    acknowledged = 0
    started_s, cpu_s = time.perf_counter(), time.process_time()
    for number in range(sent):
        while number - acknowledged >= window:
            acknowledged = pickle.loads(taker.next("how much it has taken")[1:])
        link.send(data)
    link.send(RESULT)
    while not isinstance(result := pickle.loads(taker.next("what it has counted")[1:]), tuple):
        continue
    elapsed_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    count, receiver_cpu_s = result
    if count != sent:
        raise AssertionError(f"{count} of {sent} messages arrived")
    echo = ECHO + data[1:]
    idle = round_trips(link, taker, echo, trips)
    link.send(BUSY)
    busy = round_trips(link, taker, echo, trips)
    link.send(IDLE)
    return Figures(sent / elapsed_s, cpu_s / sent * 1e6, receiver_cpu_s / sent * 1e6, idle, busy)


def round_trips(link: links.Link, taker: Taker, message: bytes, trips: int) -> tuple[float, float]:
    """The median and the 99th percentile of there and back again, in µs."""
    took: list[float] = []
    for _ in range(trips):
        started_s = time.perf_counter()
        link.send(message)
        if len(taker.next("a message back")) != len(message):
            raise AssertionError("another message came back")
        took.append((time.perf_counter() - started_s) * 1e6)
        time.sleep(0.0005)
    took.sort()
    return statistics.median(took), took[int(len(took) * 0.99)]


def process(name: str, address: Any, pipe: Any) -> None:
    """The receiver's process."""
    sys.setswitchinterval(SWITCH_S)
    link = links.made(name)
    link.connect(address)
    pipe.send(link.address)
    serve(link)
    link.close(PATIENCE_S)


def between_processes(name: str, measured: Sequence[Measured]) -> list[Figures]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    link = links.made(name)
    child = context.Process(target=process, args=(name, link.address, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(PATIENCE_S):
            raise TimeoutError(f"the receiver of {name} has not said its address for {PATIENCE_S:.0f} s")
        link.connect(ours.recv())
        figures = [each(link) for each in measured]
        link.send(END)
        link.close(PATIENCE_S)  # at both ends together: a server of Flight ends when the streams to it have
        child.join(PATIENCE_S)
        if child.exitcode != 0:
            raise TimeoutError(f"the receiver of {name} has not ended well within {PATIENCE_S:.0f} s: {child.exitcode}")
        return figures
    finally:
        child.kill()


def between_actors(measured: Sequence[Measured]) -> list[Figures]:
    import ray

    remote: Any = ray.remote

    @remote(num_cpus=0, concurrency_groups={"deliver": 1})
    class End:
        def __init__(self) -> None:
            sys.setswitchinterval(SWITCH_S)
            self.link = links.CallLink(ray.get_runtime_context().current_actor)

        @ray.method(concurrency_group="deliver")
        def deliver(self, data: bytes) -> None:
            self.link.arrived.put(data)

        def use(self, peer: Any, act: Callable[[links.Link], Any]) -> Any:
            self.link.connect(peer)
            return act(self.link)

    ends: Any = End
    sender, receiver = ends.remote(), ends.remote()
    serving = receiver.use.remote(sender, serve)
    try:
        figures = list[Figures]()
        for each in measured:
            figures.append(ray.get(sender.use.remote(receiver, each), timeout=PATIENCE_WITH_SIZE_S))
        ray.get([receiver.deliver.remote(END), serving], timeout=PATIENCE_S)
        return figures
    finally:
        ray.kill(sender)
        ray.kill(receiver)


def measure(name: str, n: float, trips: int) -> list[Figures]:
    """One way, at each size."""
    less = 0.1 if name == "Ray calls" else 1.0

    def at(size: int, sent: int) -> Measured:
        return lambda link: drive(link, size, sent, trips)

    measured = [at(size, max(32, int(SENT[of] * n * less))) for of, size in SIZES.items()]
    return between_actors(measured) if name == "Ray calls" else between_processes(name, measured)


def told(rounds: dict[str, list[list[Figures]]]) -> str:
    """The tables, one per size."""
    header = ("", "MB/s", "messages/s", "µs at the sender", "at the receiver", "round trip, µs", "p99", "busy", "p99")
    tables: list[str] = []
    for index, (of, size) in enumerate(SIZES.items()):
        rows: list[list[str]] = []
        for name, measured in rounds.items():
            figures = [each[index] for each in measured]
            rate = spread([f.rate for f in figures])
            middle = [
                statistics.median(values)
                for values in zip(*((f.sender_us, f.receiver_us, *f.idle_us, *f.busy_us) for f in figures), strict=True)
            ]
            shown_rate = f"{rate.median:,.0f} ({rate.low:,.0f}-{rate.high:,.0f})"
            rows.append([name, f"{rate.median * size / 1e6:,.0f}", shown_rate, *(f"{value:,.0f}" for value in middle)])
        tables.append(f"{of}:\n\n" + show(header, rows))
    return "\n\n".join(tables)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.micro.transport", description=__doc__)
    parser.add_argument("--n", type=float, default=1.0, help="times as many messages")
    parser.add_argument("--trips", type=int, default=300, help="round trips")
    parser.add_argument("--reps", type=int, default=3, help="rounds, interleaved")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", default=NAMES, help=", ".join(NAMES))
    asked = parser.parse_args(arguments)
    print(machine.describe(), end="\n\n")
    if "Ray calls" in asked.only:
        import ray

        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    rounds: dict[str, list[list[Figures]]] = {name: [] for name in NAMES if name in asked.only}
    for _ in range(asked.reps):
        for name, measured in rounds.items():
            measured.append(measure(name, asked.n, asked.trips))
    print(told(rounds), flush=True)
    if "Ray calls" in asked.only:
        import ray

        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
