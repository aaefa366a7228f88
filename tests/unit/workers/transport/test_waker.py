"""Wakes: never lost, never in the way."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from malstrom_py.workers.transport.peers import Waker


@pytest.fixture
def waker() -> Iterator[Waker]:
    made = Waker()
    yield made
    made.close()


def readable(waker: Waker) -> bool:
    return bool(select.select([waker], [], [], 0)[0])


def test_a_wake_ends_one_wait(waker: Waker) -> None:
    assert not readable(waker)
    assert not waker.taken()
    waker.wake()
    waker.wake()
    assert readable(waker)
    assert waker.taken()
    assert not readable(waker)


def test_no_number_of_wakes_blocks(waker: Waker) -> None:
    for _ in range(100_000):
        waker.wake()
    while waker.taken():
        continue
    assert not readable(waker)


def test_a_wake_after_the_end_does_nothing() -> None:
    waker = Waker()
    waker.close()
    waker.wake()
