"""One seed: a real job writes through a sink, dies or is paused at chosen points, and lives again until it is done.

After each life, and whenever a life is interrupted, the visible rows are compared with the durable manifests. At the
end each row is visible exactly once.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import random
import secrets
import tempfile
import threading
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest import mock

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.builder.plan import Plan
from malstrom_py.clock import VirtualClock
from malstrom_py.errors import FencedError, MalstromError
from malstrom_py.workers.coordinator.coordinator import Coordinator
from malstrom_py.workers.coordinator.recovery import SnapshotUse
from malstrom_py.workers.runtime.job_run import JobRun
from malstrom_py.workers.runtime.local_workers import LocalWorkers
from tests.simulation.commits.hooks import STEP, Truth, WatchedSink, WatchedStore, watched_disk
from tests.simulation.commits.lives import Fault, Kind, Life, When
from tests.simulation.commits.targets import DRAWN, TARGETS, Place

RECORDS: Final = 36
KEYS: Final = 5
START_S: Final = 4_102_444_800.0
LIVES_MAX: Final = 12
"""After so many lives without further faults a job must have finished."""

PLACES: Final[dict[str, int]] = {
    "claim": 1,
    "recover": 1,
    "a step of recover": 4,
    "open": 3,
    "write": 16,
    "pre_commit": 6,
    "a step of pre_commit": 12,
    "manifest": 3,
    "commit": 3,
    "a step of commit": 16,
    "close": 2,
    "store": 40,
}
"""The points at which a fault may be due, and below which number."""

INTERRUPTED: Final[tuple[tuple[str, When], ...]] = (
    ("claim", "after"),
    ("recover", "before"),
    ("recover", "before"),
    ("a step of recover", "before"),
    ("pre_commit", "after"),
    ("manifest", "before"),
    ("manifest", "after"),
    ("commit", "before"),
    ("a step of commit", "before"),
    ("a step of commit", "after"),
)
"""Where a life is interrupted between two things that belong together."""

MEETING: Final[tuple[tuple[str, When], ...]] = (
    ("pre_commit", "after"),
    ("manifest", "after"),
    ("manifest", "after"),
    ("commit", "before"),
    ("a step of commit", "after"),
)
"""Where it matters most that a zombie continues beside a life, or between its death and the next life."""

T = TypeVar("T")

_WHEN: Final[tuple[When, ...]] = ("before", "after")


class Violation(AssertionError):
    """The visible rows cannot be."""


class InlineBackground:
    """Does the work of a background in the thread of the run; `turn` delivers the results."""

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake
        self._back: list[tuple[Callable[[Any], None], Any]] = []

    @property
    def pending(self) -> int:
        """The number of results that wait."""
        return len(self._back)

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, urgent: bool = True) -> None:
        """Do ``work`` now."""
        try:
            result: T | BaseException = work()
        except MalstromError as error:
            result = error
        self._back.append((done, result))
        self._wake.set()

    def turn(self) -> bool:
        """Deliver the results."""
        back, self._back = self._back, []
        for done, result in back:
            done(result)
        return bool(back)

    def close(self) -> None:
        """Drop the results."""
        self._back.clear()


@dataclass(frozen=True, slots=True)
class Course:
    """How one life goes if nothing happens to it: ``snapshots`` and ``rescales`` (turn -> size) by turns."""

    workers: int
    snapshots: frozenset[int]
    rescales: dict[int, int]


@dataclass(slots=True)
class Ran:
    """What a seed has met. ``trace``: a hash of all points of all lives."""

    hits: Counter[str]
    trace: str
    lives: int


def counted(key: int, number: int, seen: int) -> tuple[dict[str, int], int]:
    """Count a record of a key."""
    return {"n": number, "key": key, "seen": seen + 1}, seen + 1


def job_of(name: str, sink: WatchedSink) -> mp.Job:
    """Return the job."""
    job = mp.Job(name)
    read = job.source("in", sources.Memory(range(RECORDS), parts=3))
    read.key_by("by-key", lambda number: number % KEYS).stateful_map("count", counted, default=int).sink(STEP, sink)
    return job


@dataclass(slots=True)
class Scene:
    """The job of one seed, its target, and what has become of it."""

    rng: random.Random
    place: Place
    hits: Counter[str] = field(default_factory=Counter)
    truth: Truth = field(default_factory=Truth)
    lives: list[Life] = field(default_factory=list)
    clock_s: float = START_S
    workers: int = 0
    store: WatchedStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = WatchedStore(self.place.job, self.truth)

    # The lives.

    @property
    def zombies(self) -> list[Life]:
        """The lives that are paused."""
        return [life for life in self.lives if life.is_zombie and not life.is_over]

    def live(self, faults: list[Fault]) -> Life:
        """Let the job live once, to its next death, pause or end."""
        life = Life(str(len(self.lives)), self._work(self._course()), faults, self.hits)
        others = self.zombies
        self.lives.append(life)
        life.resume()
        while life.state == "handing over":
            self.check()
            self._wake_one(others)
            life.resume()
        if life.is_dead:
            gc.collect()
        self._check_error(life, others)
        self.check()
        return life

    def let_go_on(self, zombie: Life, points: int | None = None) -> None:
        """Let a zombie continue, to its end, or for so many points."""
        self.hits["a zombie continues"] += 1
        zombie.resume(points)
        if isinstance(zombie.error, FencedError):
            self.hits["a zombie is fenced"] += 1
        self.check()

    def _wake_one(self, zombies: list[Life]) -> None:
        asleep = [zombie for zombie in zombies if not zombie.is_over]
        if asleep:
            self.hits["a zombie continues beside a life"] += 1
            self.let_go_on(self.rng.choice(asleep), self.rng.choice([None, 3, 10, 30]))

    def _course(self) -> Course:
        rng, before = self.rng, self.workers
        self.workers = rng.randint(1, 3)
        if before not in {0, self.workers}:
            self.hits["another number of workers"] += 1
        snapshots = frozenset(rng.sample(range(2, 16), 4))
        rescales = {rng.randint(2, 12): rng.randint(1, 3)} if rng.random() < 0.3 else {}
        self.hits["a rescale"] += len(rescales)
        skew_s = -5.0 if rng.random() < 0.15 else rng.choice([0.0, 1e-6, 0.5])
        self.hits["the clock is set back"] += skew_s < 0
        self.clock_s += skew_s
        return Course(self.workers, snapshots, rescales)

    def _work(self, course: Course) -> Callable[[], object]:
        plan = job_of(self.place.job, WatchedSink(self.place.sink(), self.truth)).plan()
        return lambda: _run(plan, self.store, course, self.clock_s)

    def _check_error(self, life: Life, others: list[Life]) -> None:
        if life.error is None or life.is_dead or life.is_failed:
            return
        if isinstance(life.error, MalstromError) and others:
            self.hits["a life fails beside a zombie"] += 1  # for example because the zombie holds a lock
            return
        raise Violation(f"life {life.name} has failed: {type(life.error).__name__}: {life.error}") from life.error

    # What is visible.

    def check(self) -> None:
        """`Violation` unless the visible rows are of durable manifests, once, and no committed ones are missing."""
        found = Counter(self.place.rows())
        twice = [row for row, count in found.items() if count > 1]
        _require(not twice, f"rows are visible more than once: {sorted(twice)}")
        durable = {row for rows in self.truth.durable.values() for row in rows}
        _require(set(found) <= durable, f"rows of no durable snapshot are visible: {sorted(set(found) - durable)}")
        must = {row for snapshot in self.truth.committed for row in self.truth.durable[snapshot]}
        if self.place.at_end:
            must = durable if self.truth.final in self.truth.committed else set()
        _require(must <= set(found), f"committed rows are not visible: {sorted(must - set(found))}")

    def check_end(self) -> None:
        """`Violation` unless each record is visible once, and each was counted once."""
        rows = self.place.rows()
        _require(sorted(n for n, _, _ in rows) == list(range(RECORDS)), f"not each record once: {sorted(rows)}")
        for key in range(KEYS):
            seen = sorted(seen for _, own, seen in rows if own == key)
            _require(seen == list(range(1, len(seen) + 1)), f"key {key} was counted {seen}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


def _run(plan: Plan, store: WatchedStore, course: Course, clock_s: float) -> None:
    """Run the job as one process does, from the claim to its end."""
    clock = VirtualClock(clock_s)
    snapshot_use = SnapshotUse(mp.Snapshots(store, interval_s=None, keep=3))
    group = LocalWorkers(plan, clock, mp.Batching(rows_max=2))
    coordinator = Coordinator(
        plan,
        group,
        workers=course.workers,
        clock=clock,
        snapshot_use=snapshot_use,
        background=lambda: InlineBackground(group.wake),
    )
    turns = 0

    def turn(coordinator: Coordinator[LocalWorkers]) -> bool:
        nonlocal turns
        turns += 1
        clock.advance(0.001)
        if turns in course.snapshots:
            coordinator.snapshot(_ended)
        if turns in course.rescales:
            coordinator.rescale(course.rescales[turns], _ended)
        return False

    JobRun(plan, coordinator, clock).execute(turn)


def _ended(result: object) -> None:
    """What came of it is seen in the rows."""


def drawn_fault(rng: random.Random, kind: Kind, points: Sequence[tuple[str, When]] = ()) -> Fault:
    """Draw where something happens to a life. What comes early is likelier: later on the job may have finished."""
    anywhere: Sequence[tuple[str, When]] = [(place, when) for place in PLACES for when in _WHEN]
    place, when = rng.choice(points or anywhere)
    return Fault(kind, place, when, int(PLACES[place] * rng.random() ** 1.5))


def drawn_faults(rng: random.Random) -> list[Fault]:
    """Draw what happens to one life: it fails, dies or is paused at a point, and hands over to zombies at some."""
    faults = [drawn_fault(rng, rng.choice(["die", "pause", "pause", "fail"]))]
    if faults[0].kind == "fail" and rng.random() < 0.5:
        faults.append(Fault(rng.choice(["die", "pause"]), "abort", rng.choice(["before", "after"]), 0))
    return faults + [drawn_fault(rng, "hand over") for _ in range(rng.choice([0, 1, 2]))]


def drawn_story(rng: random.Random) -> list[list[Fault]]:
    """Draw what happens to several lives. Half of the stories begin with two lives that meet where it matters."""
    story = [drawn_faults(rng) for _ in range(rng.choice([1, 2, 3]))]
    if rng.random() < 0.5:
        return story
    kind: Kind = rng.choice(["hand over", "die"])
    meets = [drawn_fault(rng, kind, MEETING) for _ in range(2)]
    return [[drawn_fault(rng, rng.choice(["pause", "pause", "die"]), INTERRUPTED)], meets, *story]


def run(seed: int, *, target: str | None = None, make: Callable[[Path], Place] | None = None) -> Ran:
    """Run one seed. `Violation` if rows are lost, repeated, or visible too early. ``target``: by default drawn."""
    rng = random.Random(seed)
    name = target or DRAWN[seed % len(DRAWN)]
    with (
        tempfile.TemporaryDirectory(prefix="malstrom-commits-") as folder,
        _own_garbage(),
        _quiet(folder),
        _names_of(seed),
        watched_disk(),
        (place := (make or TARGETS[name])(Path(folder))).around(),
    ):
        scene = Scene(rng, place)
        scene.hits[f"target {name}"] += 1
        try:
            _live_and_die(scene)
        except Violation as violation:
            violation.add_note(f"seed {seed}, target {name}: have it again with {replay(seed, target)}")
            raise
        finally:
            for zombie in scene.zombies:
                zombie.kill()
        trace = hashlib.sha256("".join(life.trace for life in scene.lives).encode()).hexdigest()
    return Ran(scene.hits, trace, len(scene.lives))


def replay(seed: int, target: str | None) -> str:
    """Return the command that runs a seed again."""
    named = "" if target is None else f" --target {target!r}"
    return f"python -m tests.simulation.commits.replay {seed}{named}"


def _live_and_die(scene: Scene) -> None:
    rng = scene.rng
    for faults in drawn_story(rng):
        scene.live(faults)
        if scene.zombies and rng.random() < 0.5:
            scene.hits["a zombie continues between two lives"] += 1
            scene.let_go_on(rng.choice(scene.zombies), rng.choice([None, 5, 20]))
    for attempt in range(LIVES_MAX):
        beside = [Fault("hand over", place, "before", 0) for place in rng.sample(list(PLACES), 3)]
        if scene.live(beside).error is None:
            break
        if attempt and scene.zombies:  # It may hold a lock; the system ends it in the end.
            scene.zombies[0].kill()
            scene.check()
    else:
        raise Violation(f"the job has not finished in {LIVES_MAX} lives")
    scene.check_end()
    for zombie in scene.zombies:
        scene.hits["a zombie continues after the end"] += 1
        scene.let_go_on(zombie)
    scene.check_end()


@contextmanager
def _own_garbage() -> Iterator[None]:
    """Let `gc.collect` look at what this seed has made, and at nothing else; it runs only where the seed calls it."""
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


@contextmanager
def _names_of(seed: int) -> Iterator[None]:
    """Draw the random parts of names by the seed: a folder lists its files in another order under other names."""
    rng = random.Random(f"names of {seed}")
    uuids = lambda: uuid.UUID(int=rng.getrandbits(128), version=4)  # noqa: E731
    hexes = lambda size=16: rng.randbytes(size).hex()  # noqa: E731
    with mock.patch.object(secrets, "token_hex", hexes), mock.patch.object(uuid, "uuid4", uuids):
        yield


@contextmanager
def _quiet(folder: str) -> Iterator[None]:
    """Keep back the warnings that belong to failures, and keep what the dead leave in ``folder``."""
    logs = [logging.getLogger(f"malstrom_py{name}") for name in ("", ".coordinator", ".connectors.kafka")]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        with mock.patch.object(tempfile, "tempdir", folder), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # The dead close nothing.
            yield
            gc.collect()
    finally:
        for log, was_disabled in zip(logs, before, strict=True):
            log.disabled = was_disabled
