"""Who an end is connected to, whom it is leaving, whom it has lost."""

from __future__ import annotations

import pickle
import select
from collections.abc import Iterator

import pytest

from malstrom_py.errors import InternalError, PeerError
from malstrom_py.workers.transport.base import JobSecret
from malstrom_py.workers.transport.peers import LAST_WORDS_S, QUIET_S, Losses, Peers, Waker


class Sent:
    """A connection."""


@pytest.fixture
def peers() -> Peers[Sent]:
    return Peers(0)


def test_what_is_sent_goes_to_its_receiver_alone(peers: Peers[Sent]) -> None:
    first, second = peers.connect(1, Sent), peers.connect(2, Sent)
    assert (peers.of(1), peers.of(2)) == (first, second)


def test_nothing_can_be_sent_to_who_was_never_connected(peers: Peers[Sent]) -> None:
    with pytest.raises(InternalError, match="worker 0 sends to worker 1, which was never connected"):
        peers.of(1)


def test_a_peer_is_not_connected_twice_at_a_time(peers: Peers[Sent]) -> None:
    peers.connect(1, Sent)
    with pytest.raises(InternalError, match="worker 0 is connected to worker 1 already"):
        peers.connect(1, Sent)


def test_what_is_for_a_peer_that_is_being_left_is_dropped_and_its_connection_kept(peers: Peers[Sent]) -> None:
    left = peers.connect(1, Sent)
    peers.disconnect(1)
    assert (peers.of(1), peers.leaving) == (None, [left])
    assert peers.connect(1, Sent) is not left


def test_a_lost_peer_is_named_with_how_and_not_connected_again_before_it_is_disconnected(peers: Peers[Sent]) -> None:
    lost = peers.connect(1, Sent)
    peers.lose(1, 0.0, "nothing answers")
    assert peers.of(1) is None
    with pytest.raises(
        PeerError, match="worker 1 is gone, or cannot be reached from worker 0 any longer: nothing answe"
    ):
        peers.losses.check(10.0, quiet=True)
    with pytest.raises(InternalError):
        peers.connect(1, Sent)
    peers.disconnect(1)
    peers.losses.check(10.0, quiet=True)
    assert peers.connect(1, Sent) is not lost


# When a loss is reported.


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


# Wakes: never lost, never in the way.


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


# The secret of a job.


def test_each_is_another() -> None:
    assert len({JobSecret.new().key for _ in range(10)}) == 10


def test_it_travels_and_gives_the_same_at_both_ends() -> None:
    secret = JobSecret.new()
    there = pickle.loads(pickle.dumps(secret))
    assert there == secret
    assert there.derive("stream") == secret.derive("stream") != JobSecret.new().derive("stream")


def test_it_does_not_show() -> None:
    secret = JobSecret(b"s3cret" * 5)
    assert "s3cret" not in f"{secret} {secret!r}"
    assert b"s3cret" not in secret.derive("call")
