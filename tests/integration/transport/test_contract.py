"""The contract of every `Transport`."""

from __future__ import annotations

import pytest

from malstrom_py.errors import InternalError, PeerError
from malstrom_py.rescale.channels.channel import Barrier, ChannelId, Frame, Grant, PlacedEpoch, Suspend
from malstrom_py.rescale.moves.protocol import (
    Bye,
    ByesTaken,
    Leave,
    Marker,
    MarkersIn,
    OpenSlots,
    PartHandedOver,
    PartMove,
    PartsPolled,
    PollParts,
    RegionDone,
    RescaleMove,
    Shipped,
    ShippedIn,
    StartMove,
    StateChunk,
    Switched,
)
from malstrom_py.workers.transport.base import JobSecret
from malstrom_py.workers.transport.messages import COORDINATOR, Connected, Content
from tests.integration.transport import acts
from tests.integration.transport.ends import End, Kind

CHANNEL = ChannelId("by-key", 0, 1)
MOVE = RescaleMove(2, (0, 1), (0, 1, 2), (0, 1, 2) * 100, (PartMove("numbers", "a", 0, 2),))
CONTENTS: list[Content] = [
    Frame(CHANNEL, b"rows", 3, 4, (PlacedEpoch(1, 7), PlacedEpoch(3, 9, True)), None, 1, 2),
    Frame(CHANNEL, b"", version=2),
    Frame(CHANNEL, bytes(100_000), 1000, 100_000, version=3),
    Frame(CHANNEL, epochs=(PlacedEpoch(0, 2**63 - 1),), version=4),
    *(Frame(CHANNEL, control=c) for c in (Barrier("s-1"), Suspend(), Marker(MOVE, 3, 4, True), Shipped(2), Bye())),
    Grant(CHANNEL, 1, 1000, 2**40),
    StateChunk("region", 2, 0, (1, 2), {"count": b"x" * 50_000, "sum": b""}),
    PartHandedOver(2, MOVE.parts[0], {"row": 3}, state=[1, None]),
    StartMove(MOVE),
    OpenSlots(2, "region"),
    PollParts(2, "numbers"),
    Leave(),
    MarkersIn(2, 0, "by-key"),
    ShippedIn(2, 0, "by-key"),
    RegionDone(2, 0, "region"),
    Switched(2, 0),
    PartsPolled(2, 0, "numbers"),
    ByesTaken(1, 0, "by-key"),
    Connected(2),
]
CREDIT_BYTES = 16 << 20


def pair(kind: Kind) -> tuple[End, End]:
    """Worker 0, connected to worker 1."""
    sender, receiver = kind.end(0), kind.end(1)
    sender.run(acts.connect, 1, receiver.address)
    return sender, receiver


def test_each_kind_of_content_arrives_as_it_was_sent(kind: Kind) -> None:
    sender, receiver = pair(kind)
    sender.run(acts.send, 1, CONTENTS)
    assert receiver.run(acts.receive, len(CONTENTS)) == CONTENTS


def test_nothing_sent_is_nothing_received(kind: Kind) -> None:
    sender, receiver = pair(kind)
    sender.run(acts.send, 1, [])
    assert receiver.run(acts.receive_quietly) == []


def test_f1_contents_keep_their_order_from_several_senders_at_once(kind: Kind) -> None:
    receiver = kind.end(1)
    senders = [kind.end(me) for me in (0, 2, 3)]
    for sender in senders:
        sender.run(acts.connect, 1, receiver.address)
    sent = [sender.start(acts.send_frames, me, 1, 2000, 300) for me, sender in zip((0, 2, 3), senders, strict=True)]
    numbers = receiver.run(acts.numbers_received, 6000)
    for wait in sent:
        wait()
    assert numbers == {me: list(range(2000)) for me in (0, 2, 3)}


def test_the_coordinator_is_a_peer_as_others_are(kind: Kind) -> None:
    coordinator, worker = kind.end(COORDINATOR), kind.end(0)
    worker.run(acts.connect, COORDINATOR, coordinator.address)
    coordinator.run(acts.connect, 0, worker.address)
    worker.run(acts.send, COORDINATOR, [Connected(0)])
    assert coordinator.run(acts.receive, 1) == [Connected(0)]
    coordinator.run(acts.send, 0, [Leave()])
    assert worker.run(acts.receive, 1) == [Leave()]


def test_a_payload_of_50_mb_arrives(kind: Kind) -> None:
    sender, receiver = pair(kind)
    digest = sender.run(acts.send_large, 0, 1, 50_000_000)
    assert receiver.run(acts.digest_received) == digest


def test_f2_a_credit_full_of_frames_is_sent_while_the_receiver_takes_none(kind: Kind) -> None:
    sender, receiver = pair(kind)
    sender.run(acts.send_frames, 0, 1, 256, CREDIT_BYTES // 256)
    assert receiver.run(acts.numbers_received, 256) == {0: list(range(256))}


def test_a_wake_from_another_thread_ends_the_wait(kind: Kind) -> None:
    assert kind.end(0).run(acts.wake_from_another_thread) == []


def test_a_wake_that_comes_first_ends_the_next_wait(kind: Kind) -> None:
    assert kind.end(0).run(acts.wake_before) == []


def test_f1_a_gap_is_found(kind: Kind) -> None:
    sender, receiver = pair(kind)
    sender.run(acts.send, 1, [Connected(0)])
    sender.run(acts.lose_one, 1)
    sender.run(acts.send, 1, [Connected(0)])
    _, peer, told = receiver.run(acts.receive_until_lost)
    assert peer == 0
    assert "a gap in the messages from worker 0 to worker 1: expected message 2, got 3" in told


def test_f1_an_older_incarnation_is_dropped_and_counted(kind: Kind) -> None:
    old, new, receiver = kind.end(0), kind.end(2, incarnation=2), kind.end(1, incarnation=2)
    old.run(acts.connect, 1, receiver.address)
    old.run(acts.send, 1, [Connected(0)])
    old.run(acts.send, 1, [Connected(0)])
    assert receiver.run(acts.receive_quietly) == []
    assert receiver.run(acts.stale) == 2
    new.run(acts.connect, 1, receiver.address)
    new.run(acts.send, 1, [Connected(2)])
    assert receiver.run(acts.receive, 1) == [Connected(2)]


def test_f1_a_newer_incarnation_is_refused(kind: Kind) -> None:
    sender, receiver = kind.end(0, incarnation=2), kind.end(1)
    sender.run(acts.connect, 1, receiver.address)
    sender.run(acts.send, 1, [Connected(0)])
    contents, peer, told = receiver.run(acts.receive_until_lost)
    assert (contents, peer) == ([], 0)
    assert "worker 0 is of incarnation 2 of this job" in told


def test_a_killed_peer_is_reported_after_its_last_words(kind: Kind) -> None:
    watcher, victim = kind.end(1), kind.end(0, own_process=True)
    watcher.run(acts.connect, 0, victim.address)
    victim.run(acts.connect, 1, watcher.address)
    watcher.run(acts.send, 0, [Leave()])
    assert victim.run(acts.receive, 1) == [Leave()]
    victim.run(acts.send, 1, [Connected(0)])
    assert watcher.run(acts.receive, 1) == [Connected(0)]
    victim.run(acts.send, 1, [Switched(1, 0)])
    victim.run(acts.receive_quietly)
    victim.kill()
    contents, peer, told = watcher.run(acts.receive_until_lost)
    assert (contents, peer) == ([Switched(1, 0)], 0)
    assert "worker 0 is gone, or cannot be reached from worker 1 any longer" in told
    # Messages to it are dropped, and the loss is reported until the peer is disconnected.
    watcher.run(acts.send, 0, [Leave()])
    assert watcher.run(acts.lost_again) == 0
    watcher.run(acts.disconnect, 0)
    assert watcher.run(acts.receive_quietly) == []


def test_a_peer_that_is_gone_already_is_reported(kind: Kind) -> None:
    watcher, victim = kind.end(1), kind.end(0, own_process=True)
    victim.kill()
    watcher.run(acts.connect, 0, victim.address)
    watcher.run(acts.send, 0, [Leave()])
    assert watcher.run(acts.receive_until_lost)[:2] == ([], 0)


def test_others_go_on_when_a_lost_peer_is_disconnected(kind: Kind) -> None:
    watcher, victim, other = kind.end(1), kind.end(0, own_process=True), kind.end(2)
    watcher.run(acts.connect, 0, victim.address)
    watcher.run(acts.connect, 2, other.address)
    other.run(acts.connect, 1, watcher.address)
    victim.kill()
    assert watcher.run(acts.receive_until_lost)[:2] == ([], 0)
    watcher.run(acts.disconnect, 0)
    other.run(acts.send, 1, [Connected(2)])
    watcher.run(acts.send, 2, [Leave()])
    assert (watcher.run(acts.receive, 1), other.run(acts.receive, 1)) == ([Connected(2)], [Leave()])


def test_what_was_sent_before_a_disconnect_goes_out_and_nothing_after(kind: Kind) -> None:
    sender, receiver = pair(kind)
    sender.run(acts.send_frames, 0, 1, 500, 10_000)
    sender.run(acts.disconnect, 1)
    sender.run(acts.send, 1, [Connected(0)])
    assert receiver.run(acts.numbers_received, 500) == {0: list(range(500))}
    assert receiver.run(acts.receive_quietly) == []


def test_the_end_of_a_disconnected_peer_is_silent(kind: Kind) -> None:
    watcher, leaver = kind.end(1), kind.end(0, own_process=True)
    watcher.run(acts.connect, 0, leaver.address)
    watcher.run(acts.send, 0, [Leave()])
    assert leaver.run(acts.receive, 1) == [Leave()]
    watcher.run(acts.disconnect, 0)
    leaver.kill()
    assert watcher.run(acts.receive_quietly) == []
    watcher.run(acts.send, 0, [Leave()])


def test_a_peer_comes_back_under_its_number(kind: Kind) -> None:
    sender, first = pair(kind)
    sender.run(acts.send, 1, [Connected(0)])
    assert first.run(acts.receive, 1) == [Connected(0)]
    sender.run(acts.disconnect, 1)
    # The same worker again, and to it a worker of the same number as before.
    sender.run(acts.connect, 1, first.address)
    sender.run(acts.send, 1, [Connected(0)])
    assert first.run(acts.receive, 1) == [Connected(0)]
    again = kind.end(0)
    again.run(acts.connect, 1, first.address)
    again.run(acts.send, 1, [Connected(0)])
    assert first.run(acts.receive, 1) == [Connected(0)]


def test_what_was_sent_goes_out_before_an_end_is_closed(kind: Kind) -> None:
    sender, receiver = pair(kind)
    sender.run(acts.send_frames, 0, 1, 500, 10_000)
    sender.run(acts.close)
    assert receiver.run(acts.numbers_received, 500) == {0: list(range(500))}


def test_close_frees_descriptors_and_threads(kind: Kind) -> None:
    host, receiver = kind.end(0, own_process=True), kind.end(1)
    before, after = host.run(acts.open_and_close, receiver.address)
    assert not acts.leaked(before, after)


def test_who_has_another_secret_gets_nothing_delivered(kind: Kind) -> None:
    stranger, friend, receiver = kind.end(0, secret=JobSecret.new()), kind.end(2), kind.end(1)
    stranger.run(acts.connect, 1, receiver.address)
    stranger.run(acts.send, 1, [Connected(0)])
    friend.run(acts.connect, 1, receiver.address)
    friend.run(acts.send, 1, [Connected(2)])
    assert receiver.run(acts.receive, 1) == [Connected(2)]
    assert receiver.run(acts.receive_quietly) == []


def test_sending_to_who_was_never_connected_is_our_bug(kind: Kind) -> None:
    with pytest.raises(InternalError, match="worker 0 sends to worker 7, which was never connected"):
        kind.end(0).run(acts.send, 7, [Leave()])


def test_connecting_twice_is_our_bug(kind: Kind) -> None:
    sender, receiver = pair(kind)
    with pytest.raises(InternalError, match="worker 0 is connected to worker 1 already"):
        sender.run(acts.connect, 1, receiver.address)


def test_a_closed_end_can_do_nothing(kind: Kind) -> None:
    sender, _ = pair(kind)
    sender.run(acts.close)
    with pytest.raises(InternalError, match="the transport of worker 0 is closed"):
        sender.run(acts.send, 1, [Leave()])
    with pytest.raises(InternalError, match="the transport of worker 0 is closed"):
        sender.run(acts.receive, 1)


def test_a_message_for_another_is_found(kind: Kind) -> None:
    sender, receiver = kind.end(0), kind.end(1)
    sender.run(acts.connect, 5, receiver.address)
    sender.run(acts.send, 5, [Connected(0)])
    with pytest.raises(PeerError, match="worker 1 has received a message from worker 0 for worker 5"):
        receiver.run(acts.receive, 1)
