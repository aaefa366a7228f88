"""Wrong protocols of state that goes ahead of a move (R12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from malstrom_py.rescale.moves.protocol import StateChunk
from malstrom_py.state.ahead import KeptAside

Right = Callable[..., Any]


def changes_missed(right: Right) -> Right:
    """A key that has changed since its copy went ahead is confirmed."""

    def same(sent: Any, keys: Any, values: Any) -> Any:
        changed, sent.changed = sent.changed, set()
        found = right(sent, keys, values)
        sent.changed = changed
        return found

    return same


def changes_unseen(right: Right) -> Right:
    """And it is not sent again."""
    return lambda sent, key, values: key in sent._keys


def found_late(right: Right) -> Right:
    """Keys are looked for when state is to go ahead, not while others join: legal, and makes other defects show."""
    return lambda machine, **named: []


def earlier_wins(right: Right) -> Right:
    """A copy is put over a later one, as if the later one had come before it."""

    def put(aside: Any, keys: Any, values: Any, times: Any) -> None:
        before = dict(aside._states)
        right(aside, keys, values, times)
        aside._states.update(before)

    return put


def the_gone_return(right: Right) -> Right:
    """What came ahead is installed at the end of the move, though it was not confirmed: its keys are gone."""

    def forget(state: Any) -> None:
        left, state._aside = state._aside, KeptAside()
        _install(state, left)
        right(state)

    return forget


def used_before_the_cut(right: Right) -> Right:
    """What comes ahead is installed when it comes."""

    def put_aside(state: Any, states: bytes) -> None:
        right(state, states)
        came, state._aside = state._aside, KeptAside()
        _install(state, came)

    return put_aside


def confirmed_already(right: Right) -> Right:
    """And is there when it is confirmed."""
    return lambda state, confirmed: None


def over_what_came(right: Right) -> Right:
    """And what comes at the cut is put over it."""

    def acquire(state: Any, states: bytes) -> None:
        sent = state._codec.decode_in_flight(states, step=state.step)
        if type(sent) is not bytes:
            state.collect(sent[0])
        right(state, states)

    return acquire


def taken_from_the_dead(right: Right) -> Right:
    """State that went ahead of a move that was called off is kept for the next one of its version."""

    def drop(group: Any, receiver: int, content: Any) -> None:
        if isinstance(content, StateChunk) and content.ahead and receiver in group._hosts:
            group.worker(receiver).receive(content)
        else:
            right(group, receiver, content)

    return drop


def _install(state: Any, aside: Any) -> None:
    keys = [key for key in aside._states if not _there(state, key)]
    values, times = aside.take(keys, state.step)
    state._take_in(keys, values, times, "acquired, but the key already has state here")


def _there(state: Any, key: Any) -> bool:
    found: set[Any] = set()
    state.interrogate(lambda other: other == key, found)
    return bool(found)
