"""Messages are numbered and checked, and decoded the same for every cut."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.errors import CodecError, PeerError
from malstrom_py.rescale.channels.channel import ChannelId, Frame, Grant, PlacedEpoch
from malstrom_py.rescale.moves.protocol import Marker, PartHandedOver, PartMove, RescaleMove, StateChunk
from malstrom_py.workers.transport import wire
from malstrom_py.workers.transport.messages import Connected, Content
from malstrom_py.workers.transport.wire import InStreams, OutStream

CHANNEL = ChannelId("by-key", 0, 1)
LARGE = wire._INLINE_MAX + 1

payloads = st.none() | st.sampled_from([b"", b"x", bytes(wire._INLINE_MAX), b"y" * LARGE, b"z" * 300_000])
frames = st.builds(
    Frame,
    channel=st.builds(ChannelId, st.text(max_size=5), st.integers(0, 9), st.integers(0, 9)),
    payload=payloads,
    rows=st.integers(0, 2**70),
    size=st.integers(0, 2**70),
    epochs=st.lists(st.builds(PlacedEpoch, st.integers(0, 9), st.integers(), st.booleans()), max_size=3).map(tuple),
    control=st.none() | st.just(Marker(RescaleMove(2, (0,), (0, 1), (0, 1)), 3, 4)),
    incarnation=st.integers(0, 9),
    version=st.integers(0, 9),
)
grants = st.builds(Grant, st.just(CHANNEL), st.integers(0, 9), st.integers(), st.integers())
parcels = st.builds(
    StateChunk,
    st.just("region"),
    st.just(2),
    st.just(0),
    st.just((1, 2)),
    st.dictionaries(st.text(max_size=3), payloads),
)


def stream(*, sender: int = 0, receiver: int = 1, incarnation: int = 1) -> OutStream:
    return OutStream(sender, receiver, incarnation)


def messages(out: OutStream, *contents: Content) -> list[list[bytes]]:
    return list(out.messages(contents))


@given(st.lists(frames | grants | parcels, max_size=8), st.integers(40, 100_000), st.sampled_from([bytes, memoryview]))
def test_contents_come_back_wherever_their_message_is_cut(
    contents: list[Content], part_bytes: int, kind: Callable[[bytes], bytes]
) -> None:
    streams, received = InStreams(1, 1), list[Content]()
    for message in messages(stream(), *contents):
        whole = b"".join(message)
        received += streams.open([kind(whole[at : at + part_bytes]) for at in range(0, len(whole), part_bytes)])
    assert received == contents


def test_a_large_payload_is_not_copied() -> None:
    payload = bytes(LARGE)
    [message] = messages(stream(), Frame(CHANNEL, payload))
    assert message[1] is payload
    [frame] = InStreams(1, 1).open(message)
    assert isinstance(frame, Frame)
    assert frame.payload is payload


def test_many_contents_are_several_messages() -> None:
    contents = [Frame(CHANNEL, bytes(10_000), version=n) for n in range(100)]
    cut = messages(stream(), *contents)
    assert len(cut) > 1
    assert all(sum(map(len, message)) < 2 * wire._PICKLE_MAX for message in cut)
    streams = InStreams(1, 1)
    assert [content for message in cut for content in streams.open(message)] == contents


def test_no_contents_are_no_message() -> None:
    assert messages(stream()) == []


def test_f1_a_gap_and_a_repeat_are_found() -> None:
    out = stream()
    first, second, third = (messages(out, Connected(0))[0] for _ in range(3))
    streams = InStreams(1, 1)
    streams.open(first)
    with pytest.raises(PeerError, match=r"a repeat in the messages .* worker 1: expected message 2, got 1"):
        streams.open(first)
    with pytest.raises(PeerError, match=r"a gap in the messages .* worker 1: expected message 2, got 3") as e:
        streams.open(third)
    assert e.value.peer == 0
    assert streams.open(second) == [Connected(0)]


def test_f1_each_stream_has_its_numbers() -> None:
    streams = InStreams(1, 1)
    for out in (stream(), stream(), stream(sender=2)):
        assert streams.open(messages(out, Connected(0))[0]) == [Connected(0)]


def test_f1_incarnations_before_are_counted_and_later_ones_refused() -> None:
    streams = InStreams(1, 5)
    for _ in range(3):
        assert streams.open(messages(stream(incarnation=4), Connected(0))[0]) == []
    assert streams.stale == 3
    with pytest.raises(PeerError, match="worker 0 is of incarnation 6 of this job, and worker 1 of 5") as raised:
        streams.open(messages(stream(incarnation=6), Connected(0))[0])
    assert raised.value.peer == 0


def test_a_message_for_another_is_refused() -> None:
    with pytest.raises(PeerError, match="worker 2 has received a message from worker 0 for worker 1"):
        InStreams(2, 1).open(messages(stream(), Connected(0))[0])


@pytest.mark.parametrize("parts", [[b"short"], [b""], [b"x" * 100]])
def test_what_is_no_message_is_refused(parts: Sequence[bytes]) -> None:
    with pytest.raises(PeerError, match=r"truncated|another release"):
        InStreams(1, 1).open(parts)


def test_a_message_that_ends_too_soon_is_refused() -> None:
    [message] = messages(stream(), Frame(CHANNEL, bytes(LARGE)))
    with pytest.raises(CodecError, match=r"IndexError: .* while it was decoded, from worker 0"):
        InStreams(1, 1).open(message[:1])


def handed_over(state: object) -> PartHandedOver:
    return PartHandedOver(2, PartMove("numbers", "a", 0, 1), position=3, state=state)


def test_a_state_made_of_classes_of_a_function_arrives() -> None:
    class Local:
        pass

    [content] = InStreams(1, 1).open(messages(stream(), handed_over(Local()))[0])
    assert isinstance(content, PartHandedOver)
    assert type(content.state).__qualname__ == Local.__qualname__


def test_what_cannot_be_pickled_is_named_by_step_and_type() -> None:
    with pytest.raises(CodecError, match="step 'numbers'") as raised:
        messages(stream(), handed_over(sys._getframe()))
    assert raised.value.step == "numbers"


def test_a_module_that_is_missing_at_the_receiver_is_named() -> None:
    message = messages(stream(), Connected(0))[0]
    body = pickle.dumps([(wire._OTHER, b"cno_such_module\nThing\n.")])
    head = wire._ENVELOPE.unpack(message[0][: wire._ENVELOPE.size])
    with pytest.raises(CodecError, match="No module named 'no_such_module', from worker 0"):
        InStreams(1, 1).open([wire._ENVELOPE.pack(*head[:-1], len(body)) + body])
