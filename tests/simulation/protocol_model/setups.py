"""What a run is made of: drawn from a seed, or written down for a scenario."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from malstrom_py.rescale.moves.placement import plan_moves
from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine
from malstrom_py.rescale.moves.sending_machine import SendingMachine
from malstrom_py.workers.coordinator.machine import CoordinatorMachine
from tests.simulation.protocol_model.channel import Channel
from tests.simulation.protocol_model.counting import Counting
from tests.simulation.protocol_model.reading import Reading
from tests.simulation.protocol_model.records import AHEAD, PartName
from tests.simulation.protocol_model.shapes import SHAPES, Shape
from tests.simulation.protocol_model.worker import ModelWorker


@dataclass(frozen=True)
class Machines:
    """The classes under test; a wrong protocol replaces some."""

    region: Callable[..., Any] = ReceivingMachine
    switch: Callable[..., Any] = SendingMachine
    coordinator: Callable[..., Any] = CoordinatorMachine
    plan: Callable[..., Any] = plan_moves
    worker: Callable[..., Any] = ModelWorker
    reading: Callable[..., Any] = Reading
    counting: Callable[..., Any] = Counting
    channel: Callable[..., Any] = Channel
    world: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Request:
    """Rescale to ``size`` workers, ``kept`` of those that are there; not before ``step``, and then as ``when`` says.

    ``when``: "step": immediately, "moving": during a rescale, "pressure": a channel has no credit, "end": at the end of
    stream, "quiet": nothing is in flight and nothing can be read.
    """

    size: int
    kept: int
    step: int = 0
    when: str = "step"


@dataclass(frozen=True)
class Fault:
    """``kind``: "worker", "coordinator" (crashes), "gap", "repeat" (of a frame); at or after ``step``."""

    kind: str
    step: int
    moving: bool = False


@dataclass(frozen=True)
class Setup:
    """A job, its input and size, and what happens to it. ``slow``: who or what is slow, and not as the seed decides.

    ``ahead``: state goes ahead of each move (R12).
    """

    shape: Shape
    parts: dict[PartName, tuple[tuple[int, int], ...]]
    workers: int = 1
    keys: int = 2
    owners: dict[PartName, int] = field(default_factory=dict)
    slots_max: int = 8
    credit: int = 1_000
    batch_rows: int = 1
    poll_rows: int = 1
    chunk: int = 1
    naps: int = 0
    requests: tuple[Request, ...] = ()
    faults: tuple[Fault, ...] = ()
    slow: frozenset[object] = frozenset()
    ahead: bool = False

    def owner(self, name: PartName) -> int:
        """Who reads a part first: dealt in turn, unless said."""
        return self.owners.get(name, int(name[1]) % self.workers)


def rows(rng: random.Random, count: int, keys: int, *, odd: bool) -> tuple[tuple[int, int], ...]:
    """Rows as (key, time): mostly in order; ``odd``: some late, a few far in the future."""
    found, time = [], 0
    for _ in range(count):
        time += rng.choice((0, 1, 1, 2, 5))
        late = odd and rng.random() < 0.1
        future = odd and rng.random() < 0.02
        found.append((rng.randrange(keys), AHEAD + time + 1 if future else max(0, time - 6) if late else time))
    return tuple(found)


def draw(rng: random.Random) -> Setup:
    """A setup for a seed. Features are varied as a swarm: each run has some of them."""
    shape = SHAPES[rng.choice(sorted(SHAPES))]
    workers, keys = rng.randint(1, 4), rng.randint(1, 6)
    longest, odd = rng.choice((0, 2, 6, 12, 20)), rng.random() < 0.3
    names = [(source, str(number)) for source in shape.sources for number in range(rng.randint(1, 4))]
    parts = {name: rows(rng, rng.choice((longest, rng.randint(0, longest))), keys, odd=odd) for name in names}
    skewed = rng.random() < 0.5
    return Setup(
        shape,
        parts,
        workers=workers,
        keys=keys,
        owners={name: rng.randrange(workers) for name in names} if skewed else {},
        slots_max=rng.randint(1, 6),
        credit=rng.choice((1, 1, 2, 3, 8, 1_000)),
        batch_rows=rng.choice((1, 1, 2, 4)),
        poll_rows=rng.choice((1, 2, 4)),
        chunk=rng.choice((1, 1, 3)),
        naps=rng.choice((0, 0, 3, 8)),
        requests=_requests(rng),
        faults=_faults(rng),
    )


def _requests(rng: random.Random) -> tuple[Request, ...]:
    whens: Sequence[str] = ("step", "step", "step", "moving", "pressure", "end", "quiet")
    drawn = [
        Request(rng.randint(1, 5), rng.randint(0, 4), rng.randint(0, rng.choice((20, 80, 200))), rng.choice(whens))
        for _ in range(rng.choice((1, 1, 2, 3)))
    ]
    return tuple(sorted(drawn, key=lambda request: request.step))


def _faults(rng: random.Random) -> tuple[Fault, ...]:
    if rng.random() < 0.7:
        return ()
    kinds = ("worker", "coordinator", "gap", "repeat")
    return tuple(Fault(rng.choice(kinds), rng.randint(0, 120), rng.random() < 0.5) for _ in range(rng.choice((1, 2))))
