"""All interleavings of tiny instances, to the end: a breadth-first search over the states of the model.

Where an instance is ``eager``, a report is taken by the coordinator as soon as it has been made. That leaves nothing
out as long as the order of reports changes neither what the coordinator holds nor its messages, which
tests/unit/workers/coordinator/test_coordinator_machine.py checks, and no worker has two orders to wait for after
that to begin.

``python -m tests.simulation.protocol_model.exhaustive --seconds 600`` searches larger ones too, as deep as time allows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from tests.simulation.protocol_model.forking import ForkingWorld
from tests.simulation.protocol_model.oracle import Violation
from tests.simulation.protocol_model.records import PartName
from tests.simulation.protocol_model.setups import Setup
from tests.simulation.protocol_model.shapes import SHAPES
from tests.simulation.protocol_model.world import COORDINATOR


@dataclass(frozen=True)
class Instance:
    """A job so small that all of its schedules can be tried; the request may come at any moment."""

    name: str
    setup: Setup
    wanted: tuple[int, ...]
    small: bool = True
    eager: bool = False


def _rows(*pairs: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    return pairs


def _instance(
    name: str,
    shape: str,
    parts: dict[PartName, tuple[tuple[int, int], ...]],
    workers: int,
    wanted: tuple[int, ...],
    *,
    keys: int = 2,
    owners: dict[PartName, int] | None = None,
    small: bool = True,
    eager: bool = False,
) -> Instance:
    setup = Setup(SHAPES[shape], parts, workers=workers, keys=keys, owners=owners or {})
    return Instance(name, setup, wanted, small, eager)


S, T = ("S", "0"), ("T", "0")

ONE = {S: _rows((1, 3))}
TWO = {S: _rows((1, 3)), T: _rows((1, 2))}
PARTS = {S: _rows((0, 3)), ("S", "1"): _rows((1, 2))}

INSTANCES = (
    _instance("chain 1 -> 2, one record", "chain", ONE, 1, (0, 1)),
    _instance("chain 1 -> 2, two records", "chain", {S: _rows((1, 3), (1, 7))}, 1, (0, 1)),
    _instance("chain 2 -> 1, one record", "chain", ONE, 2, (0,)),
    _instance("join 1 -> 2, a record", "join", ONE, 1, (0, 1), eager=True),
    _instance("join 1 -> 2, two records", "join", TWO, 1, (0, 1), small=False, eager=True),
    _instance("two stages 1 -> 2, one record", "two stages", ONE, 1, (0, 1), small=False, eager=True),
    _instance("chain 1 -> 2, two parts, two keys", "chain", PARTS, 1, (0, 1)),
    _instance("join 1 -> 2, two records, all orders", "join", TWO, 1, (0, 1), small=False),
    _instance("mixed 1 -> 2, one record", "mixed", {T: _rows((1, 2))}, 1, (0, 1), small=False, eager=True),
    # With one key no slot moves, so that leave to open is nothing to wait for.
    _instance(
        "mixed 2 -> 1, a part moves",
        "mixed",
        {T: _rows((0, 2))},
        2,
        (0,),
        keys=1,
        owners={T: 1},
        small=False,
        eager=True,
    ),
    _instance("chain 2 -> 3, one record", "chain", ONE, 2, (0, 1, 2), keys=3, small=False, eager=True),
    _instance("chain 2 -> 3, two parts, two keys", "chain", PARTS, 2, (0, 1, 2), keys=3, small=False, eager=True),
)


@dataclass
class Found:
    """How many states were seen, how many of them are ends, after how many actions, and whether those are all."""

    states: int = 0
    ends: int = 0
    depth: int = 0
    complete: bool = True


class Broken(AssertionError):
    """A schedule that is wrong, action by action."""


def search(instance: Instance, *, deadline: float | None = None) -> Found:
    """Try everything. `Broken` if any schedule is wrong; ``deadline`` by `time.monotonic`."""
    ids: dict[Any, int] = {}
    first = ForkingWorld(instance.setup, instance.wanted, ids)
    start = first.key()
    came_from: dict[tuple[Any, ...], tuple[tuple[Any, ...], tuple[Any, ...]] | None] = {start: None}
    todo = deque([(start, first, 0)])
    found = Found()
    while todo:
        if deadline is not None and time.monotonic() > deadline:
            found.complete = False
            break
        key, world, found.depth = todo.popleft()
        actions = world.actions()
        if instance.eager:
            actions = [action for action in actions if action[0] == "mail" and action[2] == COORDINATOR][:1] or actions
        if not actions:
            found.ends += 1
            _judge(world, instance, key, came_from)
        for action in actions:
            after = world.fork()
            try:
                after.act(action)
            except Exception as error:
                raise Broken(_story(instance, key, came_from, action, error)) from error
            reached = after.key()
            if reached not in came_from:
                came_from[reached] = (key, action)
                todo.append((reached, after, found.depth + 1))
    found.states = len(came_from)
    return found


def _judge(world: ForkingWorld, instance: Instance, key: tuple[Any, ...], came_from: dict[Any, Any]) -> None:
    try:
        world.check_end()
    except Violation as error:
        raise Broken(_story(instance, key, came_from, ("the end",), error)) from error


def _story(
    instance: Instance, key: tuple[Any, ...], came_from: dict[Any, Any], last: tuple[Any, ...], error: Exception
) -> str:
    actions = [last]
    while (step := came_from[key]) is not None:
        key, action = step
        actions.append(action)
    shown = "\n".join(str(action) for action in reversed(actions))
    return f"{instance.name}: {type(error).__name__}: {error}\n{shown}"


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="for each instance")
    parser.add_argument("names", nargs="*", default=[instance.name for instance in INSTANCES])
    given = parser.parse_args()
    for instance in INSTANCES:
        if instance.name in given.names:
            start = time.monotonic()
            found = search(instance, deadline=start + given.seconds)
            how = "complete" if found.complete else f"not complete, all of up to {found.depth - 1} actions"
            spent = time.monotonic() - start
            print(f"{instance.name}: {found.states:,} states, {found.ends} ends, {how}, {spent:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
