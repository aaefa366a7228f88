"""Who an end is connected to, whom it is leaving, whom it has lost."""

from __future__ import annotations

import pytest

from malstrom_py.errors import InternalError, PeerError
from malstrom_py.workers.transport.peers import Peers


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
