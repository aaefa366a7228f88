"""The time at which a loss is reported."""

from __future__ import annotations

import pytest

from malstrom_py.errors import PeerError
from malstrom_py.workers.transport.peers import LAST_WORDS_S, QUIET_S, Losses

GONE = PeerError("worker 3 is gone", peer=3)


@pytest.fixture
def losses() -> Losses:
    made = Losses()
    made.add(3, 10.0, GONE)
    return made


def told(losses: Losses, now: float, *, quiet: bool = True) -> bool:
    try:
        losses.check(now, quiet=quiet)
    except PeerError as error:
        return error is GONE
    return False


def test_a_loss_is_told_when_nothing_more_comes_and_then_at_each_call(losses: Losses) -> None:
    assert not told(losses, 10.0)
    assert losses.due(10.0) == pytest.approx(10.0 + QUIET_S)
    assert told(losses, 10.1)
    assert told(losses, 10.1)


def test_last_words_come_before(losses: Losses) -> None:
    assert not told(losses, 10.2, quiet=False)
    assert not told(losses, 10.2 + QUIET_S / 2)
    assert told(losses, 10.3)


def test_a_loss_is_told_however_much_others_send(losses: Losses) -> None:
    assert not told(losses, 10.0 + LAST_WORDS_S - 0.01, quiet=False)
    assert told(losses, 10.0 + LAST_WORDS_S, quiet=False)


def test_a_peer_that_is_forgotten_is_not_told(losses: Losses) -> None:
    losses.forget(3)
    losses.forget(4)
    assert not told(losses, 20.0)
    assert not losses
    assert losses.due(20.0) == float("inf")


def test_a_loss_stays_the_one_that_was_found_first(losses: Losses) -> None:
    losses.add(3, 20.0, PeerError("again", peer=3))
    assert 3 in losses
    assert told(losses, 20.1)
