"""A job in the simulator under the hands of Hypothesis: it feeds, lets work, delivers, rescales and kills as it likes.

All rules take plain numbers, which are taken modulo the number of choices, so that the program that Hypothesis
prints for a failure can be run unchanged. At the end the oracle judges the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import malstrom_py as mp
from malstrom_py.snapshot.store import MemoryStore
from tests.simulation.jobs.driving import Driven, Steered, chosen
from tests.simulation.jobs.feeding import Fed
from tests.simulation.jobs.layouts import End, Head, Layout, Stage, Timing, Way

SIZE_MAX: Final = 4
PARTS: Final = ("0", "1", "2")
KEYS: Final = 6
BOUND: Final = 6
INCARNATIONS_MAX: Final = 3

MET: Final[Counter[str]] = Counter()
"""What the runs of all machines have met so far, and how many runs there were of each machine, by its name."""

_ANY: Final = st.integers(0, 50)
_SIZE: Final = st.integers(1, SIZE_MAX)
_RUN: Final = st.tuples(_ANY, st.integers(0, KEYS - 1), st.integers(-2 * BOUND, BOUND), st.integers(1, 2 * KEYS))


class Machine(RuleBasedStateMachine):
    """A job of ``layout``."""

    layout: ClassVar[Layout]
    keeps: ClassVar[bool] = False
    """Whether it has snapshots, from which it resumes after a loss."""

    driven: Driven

    def __init__(self) -> None:
        super().__init__()
        self.feds: dict[str, Fed] = {}
        self.latest: Counter[tuple[str, str]] = Counter()
        self.has_failed = False

    @initialize(
        seed=st.integers(0, 1000),
        workers=_SIZE,
        slots=st.sampled_from([1, 4, 16]),
        rows_max=st.sampled_from([1, 3, 1024]),
        credit=st.sampled_from([1, 4, 1000]),
        chunk=st.sampled_from([1, 2, None]),
    )
    def start(self, seed: int, workers: int, slots: int, rows_max: int, credit: int, chunk: int | None) -> None:
        """The job starts, with nothing in its parts."""
        sources = [source for head in self.layout.heads for source in head.sources]
        self.feds = {source: Fed(source, parts=dict.fromkeys(PARTS, ()), chunk=chunk) for source in sources}
        batching = mp.Batching(rows_max=rows_max, credit=mp.Credit(rows=credit))
        snapshots = mp.Snapshots(MemoryStore(), interval_s=None, keep=2, chain_max=2) if self.keeps else None
        how: dict[str, Any] = {"workers": workers, "slots": slots, "batching": batching, "snapshots": snapshots}
        with self.noted():
            self.driven = Driven(self.layout, self.feds, Steered(seed), checks=True, **how)

    def teardown(self) -> None:
        """All parts end, the job finishes, and the oracle judges."""
        if self.feds and not self.has_failed:
            self.driven.end()
            MET.update(self.driven.coverage.hits)
            MET[type(self).__name__] += 1

    # -- what comes in --

    @property
    def open_parts(self) -> list[tuple[Fed, str]]:
        """The parts that may still be fed."""
        return [(fed, part) for fed in self.feds.values() for part in fed.open]

    @precondition(lambda self: self.open_parts)
    @rule(runs=st.lists(_RUN, min_size=1, max_size=8))
    def feed(self, runs: list[tuple[int, int, int, int]]) -> None:
        """Runs of records, each (part, first key, how much later than the latest of its part, how many).

        One that is earlier than that may be late. In a run each is one later than the one before it, with the next key.
        """
        for part, key, step, count in runs:
            fed, name = chosen(self.open_parts, part)
            first = self.latest[fed.name, name] + step
            for number in range(count):
                fed.feed(name, (key + number) % KEYS, first + number)
            self.latest[fed.name, name] = max(self.latest[fed.name, name], first + count - 1)

    @precondition(lambda self: self.open_parts)
    @rule(part=_ANY, polls=st.integers(2, 6))
    def idle(self, part: int, polls: int) -> None:
        """A part says that it has nothing, so many times."""
        fed, name = chosen(self.open_parts, part)
        fed.say_nothing(name, polls)

    @precondition(lambda self: len(self.open_parts) > 1)
    @rule(part=_ANY)
    def finish(self, part: int) -> None:
        """A part is at its end."""
        fed, name = chosen(self.open_parts, part)
        fed.ended.add(name)

    @precondition(lambda self: self.open_parts and len(self.latest) >= len(PARTS) * len(self.feds))
    @rule()
    def finish_all(self) -> None:
        """All are."""
        for fed in self.feds.values():
            fed.end()

    # -- actions --

    @precondition(lambda self: self.feds and self.driven.coordinator.busy)
    @rule(worker=_ANY)
    def work(self, worker: int) -> None:
        """A worker takes a step."""
        with self.noted():
            self.driven.work(worker)

    @precondition(lambda self: self.feds and self.driven.coordinator.ways)
    @rule(way=_ANY)
    def deliver(self, way: int) -> None:
        """What has been sent first on some way arrives."""
        with self.noted():
            self.driven.deliver(way)

    @rule(turns=st.integers(1, 300))
    def go_on(self, turns: int) -> None:
        """Some turns, as chance has it."""
        with self.noted():
            for _ in range(turns):
                self.driven.turn()

    @precondition(lambda self: self.feds and self.driven.actions)
    @rule(action=_ANY, turns=st.integers(5, 100))
    def slow(self, action: int, turns: int) -> None:
        """A worker, or a message in flight, has to wait."""
        self.driven.chance.make_wait(chosen(self.driven.actions, action), turns)

    @rule(duration_s=st.sampled_from([0.001, 0.02, 0.2]))
    def tick(self, duration_s: float) -> None:
        """Time passes."""
        self.driven.coordinator.pass_s(duration_s)

    # -- what is asked for, and what breaks --

    @rule(size=_SIZE)
    def rescale(self, size: int) -> None:
        """To so many workers; the youngest leave first."""
        with self.noted():
            self.driven.rescale(size)

    @rule(size=_SIZE, leavers=st.sets(st.integers(0, SIZE_MAX - 1)))
    def replace(self, size: int, leavers: set[int]) -> None:
        """Rescale to ``size`` workers, without the workers at the given places."""
        kept = [worker for at, worker in enumerate(self.driven.coordinator.target) if at not in leavers]
        with self.noted():
            self.driven.replace(kept[:size], size)

    @precondition(lambda self: self.feds and self.driven.incarnation < INCARNATIONS_MAX)
    @rule(who=st.sampled_from(["worker", "coordinator"]), workers=_SIZE)
    def kill(self, who: str, workers: int) -> None:
        """Lose an actor: the job resumes from its last snapshot, or starts from nothing; messages of the old one
        that are in flight still arrive.
        """
        with self.noted():
            self.driven.crash(who, workers)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Record a failure: a failed run has no end to judge."""
        try:
            yield
        except BaseException:
            self.has_failed = True
            raise


_TIMING: Final = Timing(BOUND, "ms", idle_s=0.05)


def _layout(heads: str, *stages: Stage, sink: str) -> Layout:
    """Sources, stages, and a sink of some kind for what leaves the last stage; the others are transactional."""
    timed = tuple(Head(head, (head,), _TIMING) for head in heads)
    return Layout(timed, stages, ends=(End("out", (Way(stages[-1].name),), sink),)).finished()


class Chain(Machine):
    """A keyed stage with windows, which timers fire."""

    layout = _layout("s", Stage("a", (Way("s"),), kind="windows", window=4), sink="written")


class TwoStages(Machine):
    """Two of them, keyed in different ways."""

    layout = _layout(
        "s",
        Stage("a", (Way("s"),), kind="windows", window=4),
        Stage("b", (Way("a"),), key="number", kind="windows", window=10),
        sink="parts",
    )


class Union(Machine):
    """Two sources joined, then keyed."""

    layout = _layout("st", Stage("a", (Way("s"), Way("t")), kind="windows", window=4), sink="memory")


class Join(Machine):
    """Two sources keyed apart that meet in one stage, and a stage after it that counts."""

    layout = _layout(
        "st",
        Stage("a", (Way("s"), Way("t")), kind="windows", window=4, apart=True),
        Stage("b", (Way("a"),), key="number", kind="batch"),
        sink="committed",
    )


class Kept(Machine):
    """A stage with windows and one that counts, saved periodically."""

    keeps = True
    layout = _layout(
        "s",
        Stage("a", (Way("s"),), kind="windows", window=4),
        Stage("b", (Way("a"),), key="number", ttl=5),
        sink="committed",
    )

    @rule(turns=st.integers(0, 100))
    def snapshot(self, turns: int) -> None:
        """One is asked for, and some turns go by."""
        with self.noted():
            self.driven.snapshot()
        self.go_on(turns)

    @precondition(lambda self: self.feds and self.driven.incarnation < INCARNATIONS_MAX)
    @rule(who=st.sampled_from(["worker", "coordinator"]), workers=_SIZE, turns=st.integers(0, 100))
    def kill_saving(self, who: str, workers: int, turns: int) -> None:
        """One is lost soon after a snapshot has been asked for."""
        self.snapshot(turns)
        self.kill(who, workers)

    @precondition(lambda self: self.feds and self.driven.incarnation < INCARNATIONS_MAX)
    @rule(workers=_SIZE)
    def stop(self, workers: int) -> None:
        """The job is stopped as planned, and resumes."""
        with self.noted():
            self.driven.stop(workers)

    @precondition(lambda self: self.feds and self.driven.coordinator.chores)
    @rule(chore=_ANY)
    def write(self, chore: int) -> None:
        """One of the things that there are to be done for snapshots is done, also by those who are dead."""
        with self.noted():
            self.driven.write(chore)


MACHINES: Final = (Chain, TwoStages, Union, Join, Kept)
