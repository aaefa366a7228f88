"""A step of ours whose state is kept, moved or persisted wrongly breaks a law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from malstrom_py.operators.panes import Panes
from malstrom_py.operators.time_join import TimeJoin
from malstrom_py.operators.time_windows import TimeWindows
from malstrom_py.state.groups import Groups
from malstrom_py.state.join_panes import JoinPanes
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.testing import LawError, check_operator
from malstrom_py.testing.check_operator import _Search
from tests.laws.test_forms import KEYS, LAW, SLIDING, TUMBLING, VALUES

STATE_LAWS = ["delta invariance", "chain invariance", "migration invariance"]
Of = Callable[[Any], Any]
"""The right method -> a wrong one."""


def stays(right: Any) -> Any:
    """A key that leaves keeps its state here, so its results come twice."""
    return lambda state, keys: state.many(keys)


def stays_in_columns(right: Any) -> Any:
    return lambda state, ids: None


def one_pane_is_found(right: Any) -> Any:
    """A move and a barrier find only one pane of a key."""
    return lambda panes, keys: [of_key and dict(list(of_key.items())[:1]) for of_key in right(panes, keys)]


def one_pane_is_put(right: Any) -> Any:
    """Of the windows of a key that arrives, one is lost."""
    return lambda panes, keys, states: right(panes, keys, [dict(list(state.items())[:1]) for state in states])


def one_side_is_found(right: Any) -> Any:
    """A move and a barrier find the left records of a key only."""

    def many(panes: Any, keys: Any) -> Any:
        return [state and {start: (lefts, []) for start, (lefts, _) in state.items()} for state in right(panes, keys)]

    return many


def one_side_is_in_the_image(right: Any) -> Any:
    def image(state: Any, keys: Any, slots_of: Any) -> Any:
        made = right(state, keys, slots_of)
        return made.take((made.states[1].to_numpy() == 0).nonzero()[0])

    return image


def changes_unseen(right: Any) -> Any:
    """A barrier does not see what columns have changed, so a delta lacks it."""
    return lambda panes: []


def changes_unnoted(right: Any) -> Any:
    """What an epoch drops is not noted as changed, so a delta keeps it."""

    def on_epoch(step: Any, epoch: Any, out: Any) -> None:
        with patch.object(KeyedState, "note", lambda *given: None):
            step.state.timers.noted = None
            right(step, epoch, out)

    return on_epoch


def one_side_moves(right: Any) -> Any:
    """The right records of a key that moves are lost."""

    def collect(state: Any, keys: Any) -> Any:
        taken = list(keys)
        for key in taken:
            if key in state.values:
                half = len(state.values[key]) // 2
                state.values[key][half:-1] = [()] * half
        return right(state, taken)

    return collect


def a_side_stays(right: Any) -> Any:
    """A key that moves leaves its records and timers here, too."""

    def collect(state: Any, keys: Any) -> Any:
        taken = list(keys)
        before = {key: state.values[key] for key in taken if key in state.values}
        times = {key: state.timers.times(key) for key in before}
        made = right(state, taken)
        state.values.update(before)
        for key, woken in times.items():
            for time in woken:
                state.timers.set(key, time)
        return made

    return collect


def outer(a: Any, b: Any) -> Any:
    return a.join("step", b, window=TUMBLING, how="outer")


def interval(a: Any, b: Any) -> Any:
    return a.join_interval("step", b, lower=0, upper=4, how="outer")


def summed(s: Any) -> Any:
    return s.window("step", SLIDING).sum("n")


@pytest.mark.parametrize(
    ("place", "method", "wrong", "step", "laws"),
    [
        (Panes, "take", stays, summed, STATE_LAWS),
        (Panes, "many", one_pane_is_found, summed, STATE_LAWS),
        (TimeWindows, "on_epoch", changes_unnoted, summed, STATE_LAWS),
        (Groups, "take", stays_in_columns, summed, [LAW]),
        (Panes, "changed_columns", changes_unseen, summed, [LAW]),
        (JoinPanes, "take", stays, outer, STATE_LAWS),
        (JoinPanes, "many", one_side_is_found, outer, STATE_LAWS),
        (JoinPanes, "set_many", one_pane_is_put, outer, STATE_LAWS),
        (JoinPanes, "drop_keys", stays_in_columns, outer, [LAW]),
        (JoinPanes, "image", one_side_is_in_the_image, outer, [LAW]),
        (KeyedState, "collect", one_side_moves, interval, STATE_LAWS),
        (KeyedState, "collect", a_side_stays, interval, STATE_LAWS),
        (TimeJoin, "on_epoch", changes_unnoted, interval, STATE_LAWS),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_p2_a_wrong_state_is_seen(
    place: type, method: str, wrong: Of, step: Any, laws: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = _Search._test
    monkeypatch.setattr(_Search, "_test", lambda self, holds, *, shrink: search(self, holds, shrink=False))
    monkeypatch.setattr(place, method, wrong(getattr(place, method)))
    with pytest.raises(LawError):
        check_operator(step, values=VALUES, keys=KEYS[0], inputs=1 + (step in (outer, interval)), timed=True, laws=laws)
