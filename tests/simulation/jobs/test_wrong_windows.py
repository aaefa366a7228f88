"""The oracle sees windows, timers of the clock and states with an end that are wrong."""

from __future__ import annotations

from typing import Any, Final

import pytest

from malstrom_py.operators.panes import Panes
from malstrom_py.operators.time_windows import TimeWindows
from malstrom_py.operators.window import CountWindows, SessionWindows, WindowOperator
from malstrom_py.state.expiry import Expiry
from malstrom_py.state.keyed_state import KeyedState
from tests.simulation.jobs.wrong_protocols import Right, WrongProtocol, nothing

SEEDS: Final = 8
"""How many seeds from the recorded one on are tried: what is right elsewhere may change what a seed does."""


def closed_by_a_part(right: Right) -> Right:
    """A window is closed by the times of the records that come, not by the merged frontier."""

    def on_batch(step: Any, batch: Any, out: Any) -> None:
        right(step, batch, out)
        if batch.timestamps and not step._by_clock:
            step.close(max(batch.timestamps) - 16, out)

    return on_batch


def left_behind(right: Right) -> Right:
    """Panes that move stay where they were, too, so that windows are sent twice."""
    return lambda panes, keys: panes.many(keys)


def one_side_only(right: Right) -> Right:
    """A record that joins two sessions gets what the first one has gathered."""
    return lambda step, there, near: right(step, there, near[:1])


def one_pane_lost(right: Right) -> Right:
    """Of a key with several panes, one is not written, in a delta or a move."""

    def many(panes: Any, keys: Any) -> Any:
        found = right(panes, keys)
        return [of and (dict(list(of.items())[:-1]) if len(of) > 1 else of) for of in found]

    return many


def unnoted(right: Right) -> Right:
    """What records add to windows is not noted, so that a delta lacks it."""
    return lambda step, keys: None


def not_joined(right: Right) -> Right:
    """A session takes records at exactly its gap."""

    def add(step: Any, *given: Any) -> None:
        step._gap += 1
        try:
            right(step, *given)
        finally:
            step._gap -= 1

    return add


def at_the_frontier(right: Right) -> Right:
    """Windows close one unit too early."""
    return lambda step, reached, out: right(step, reached + 1, out)


def reached_again(right: Right) -> Right:
    """After a move or a snapshot sliding windows that were sent are open again."""
    return nothing(right)


def clock_left(right: Right) -> Right:
    """Timers of the clock are not restored, nor moved."""

    def take(state: Any, keys: Any, values: Any, times: Any) -> None:
        right(state, keys, values, {key: some._replace(by_clock=()) for key, some in times.items()})

    return take


def ends_lost(right: Right) -> Right:
    """Until when a state lives does not move with it: it restarts."""

    def take(state: Any, keys: Any, values: Any, times: Any) -> None:
        right(state, keys, values, {key: some._replace(until=None) for key, some in times.items()})

    return take


def too_long(right: Right) -> Right:
    """A state lives until the frontier passes its time, also for records that come later than that."""
    return lambda expiry, keys, times, *, apart: iter([(0, len(keys), [])])


def by_the_first(right: Right) -> Right:
    """Later records do not let a state live longer."""

    def touch(expiry: Any, keys: Any, times: Any) -> None:
        new = [(key, time) for key, time in zip(keys, times, strict=True) if key not in expiry.until]
        right(expiry, [key for key, _ in new], [time for _, time in new])

    return touch


WRONG: Final[dict[str, WrongProtocol]] = {
    "a window is closed by the epoch of a part": WrongProtocol(
        ((WindowOperator, "on_batch", closed_by_a_part),), seed=3, shape="panes"
    ),
    "a window is sent twice after a move": WrongProtocol(((Panes, "take", left_behind),), seed=22, shape="panes"),
    "a session is merged on one side only": WrongProtocol(
        ((SessionWindows, "_runs_before", one_side_only),), seed=6, shape="panes"
    ),
    "a pane is lost in a delta": WrongProtocol(((Panes, "many", one_pane_lost),), seed=22, shape="panes"),
    "what is added is not in a delta": WrongProtocol(((WindowOperator, "changes", unnoted),), seed=15, shape="panes"),
    "a session takes what is at its gap": WrongProtocol(((SessionWindows, "add", not_joined),), shape="panes"),
    "a window closes too early": WrongProtocol(((TimeWindows, "close", at_the_frontier),), seed=45, shape="panes"),
    "windows that were sent are open again": WrongProtocol(
        ((TimeWindows, "continue_at", reached_again),), seed=104, shape="panes"
    ),
    "windows by number are lost at the end": WrongProtocol(((CountWindows, "close", nothing),), seed=1, shape="panes"),
    "timers of the clock do not move": WrongProtocol(
        ((KeyedState, "_take_times", clock_left),), seed=25, shape="clocked"
    ),
    "the end of a state does not move": WrongProtocol(((KeyedState, "_take_times", ends_lost),), seed=100, shape="ttl"),
    "a state lives too long": WrongProtocol(((Expiry, "lives", too_long),), seed=36, shape="ttl"),
    "only the first record counts": WrongProtocol(((Expiry, "touch", by_the_first),), seed=1, shape="ttl"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_oracle_catches(name: str) -> None:
    seed = WRONG[name].seed
    assert any(WRONG[name].caught(number) is not None for number in range(seed, seed + SEEDS))
