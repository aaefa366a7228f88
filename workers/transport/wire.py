"""Encoding of contents as bytes and back. A message is one sequence of bytes that a transport may cut anywhere.

A message is an envelope (incarnation, sender, receiver, stream, sequence number), then the contents as one pickle, then
large payloads. F1: a gap, a repeat or another incarnation is detected and never processed. This is the one place where
the messages between two workers are numbered and checked, the frames of all channels included. Rule: a pickle may run
code, so a transport opens only messages that are proved to come from this job.
"""

from __future__ import annotations

import pickle
import secrets
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from malstrom_py.codec import in_flight as pickles
from malstrom_py.codec.encoding_errors import NotEncodable, decode_error, encode_error
from malstrom_py.errors import PeerError
from malstrom_py.errors.text import describe_error, text_of
from malstrom_py.rescale.channels.channel import ChannelId, Frame, Grant, PlacedEpoch
from malstrom_py.rescale.moves.protocol import PartHandedOver
from malstrom_py.workers.transport.base import peer_name
from malstrom_py.workers.transport.messages import Content

_FORMAT: Final = 0x4D50_0003
_ENVELOPE: Final = struct.Struct(
    "<IQiiQQI"
)  # format, incarnation, sender, receiver, stream, number, bytes of the pickle
_INLINE_MAX: Final = 16 << 10
"""A payload with more bytes follows the pickle, which saves two copies."""
_PICKLE_MAX: Final = 256 << 10
"""The approximate size of a pickle at which the next message is started."""

_FRAME: Final = 0
_GRANT: Final = 1
_OTHER: Final = 2


class OutStream:
    """The messages from one end to a peer, numbered from connecting to disconnecting."""

    def __init__(self, sender: int, receiver: int, incarnation: int) -> None:
        self._sender = sender
        self._receiver = receiver
        self._incarnation = incarnation
        # A peer that returns with the same number starts another stream, so that its first message is not a gap.
        self._stream = secrets.randbits(64)
        self._number = 0

    def messages(self, contents: Sequence[Content]) -> Iterator[list[bytes]]:
        """Yield ``contents`` as messages, each a list of parts. `CodecError` for a value that cannot be pickled."""
        items: list[tuple[Any, ...]] = []
        large: list[bytes] = []
        inline = 0
        for content in contents:
            item, data = _packed(content)
            items.append(item)
            if data is None:
                inline += 128  # the approximate size of the rest of an item
            elif len(data) <= _INLINE_MAX:
                inline += len(data)
            else:
                large.append(data)
            if inline >= _PICKLE_MAX or len(large) >= 64:
                yield self._message(items, large)
                items, large, inline = [], [], 0
        if items:
            yield self._message(items, large)

    def _message(self, items: list[tuple[Any, ...]], large: list[bytes]) -> list[bytes]:
        body = pickle.dumps(items, 5)
        self._number += 1
        envelope = _ENVELOPE.pack(
            _FORMAT, self._incarnation, self._sender, self._receiver, self._stream, self._number, len(body)
        )
        return [envelope + body, *large]


class InStreams:
    """The messages to one end: checks envelopes. ``stale``: the dropped messages of older incarnations."""

    def __init__(self, me: int, incarnation: int) -> None:
        self.stale = 0
        self._me = me
        self._incarnation = incarnation
        self._numbers: dict[tuple[int, int], int] = {}

    def open(self, parts: Sequence[bytes | memoryview]) -> list[Content]:
        """Return the contents of the message that ``parts`` form together, cut anywhere.

        Raises:
            PeerError: the message is not the next one of its stream, is of a newer incarnation, is not for this end, or
                is of another release.
            CodecError: a content cannot be decoded here, for example because a module is missing.
        """
        run = ByteReader(parts)
        head = run.take_some(_ENVELOPE.size)
        if len(head) < _ENVELOPE.size:
            raise PeerError("a truncated message was received. Restart the job.")
        found, incarnation, sender, receiver, stream, number, body_bytes = _ENVELOPE.unpack(head)
        if found != _FORMAT:
            raise PeerError(
                "a message of another release of malstrom-py was received. Install one release on all machines."
            )
        if incarnation < self._incarnation:
            self.stale += 1
            return []
        self._check(incarnation, sender, receiver, stream, number)
        try:
            items = pickle.loads(run.take(body_bytes))
            return [_unpacked(item, run) for item in items]
        except Exception as error:
            raise decode_error(f"{_why(error)}, from {peer_name(sender)}", step="") from error

    def _check(self, incarnation: int, sender: int, receiver: int, stream: int, number: int) -> None:
        if incarnation > self._incarnation:
            raise PeerError(
                f"{peer_name(sender)} is of incarnation {incarnation} of this job, and {peer_name(self._me)} of "
                f"{self._incarnation}: the job was started again. Stop this run.",
                peer=sender,
            )
        if receiver != self._me:
            raise PeerError(
                f"{peer_name(self._me)} has received a message from {peer_name(sender)} for {peer_name(receiver)}. "
                "Restart the job.",
                peer=sender,
            )
        expected = self._numbers.get((sender, stream), 0) + 1
        if number != expected:
            what = "a gap" if number > expected else "a repeat"
            raise PeerError(
                f"{what} in the messages from {peer_name(sender)} to {peer_name(self._me)}: expected message "
                f"{expected}, got {number}. Restart the job.",
                peer=sender,
            )
        self._numbers[sender, stream] = number


class ByteReader:
    """A sequential reader of bytes that are cut into parts."""

    __slots__ = ("_at", "_part", "_parts")

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self._parts = parts
        self._part = 0
        self._at = 0

    def take(self, size: int) -> bytes | memoryview:
        """Return the next ``size`` bytes; without a copy if they are in one part."""
        part = self._parts[self._part]
        if self._at + size <= len(part):
            return self.take_some(size)
        pieces: list[bytes | memoryview] = []
        while size:
            pieces.append(self.take_some(size))
            size -= len(pieces[-1])
        return b"".join(pieces)

    def take_some(self, size: int) -> bytes | memoryview:
        """Return at most ``size`` of the next bytes, from one part."""
        part, start = self._parts[self._part], self._at
        end = start + size
        if end >= len(part):
            self._part += 1
            self._at = 0
            return part if not start else memoryview(part)[start:]
        self._at = end
        return memoryview(part)[start:end]


def _packed(content: Content) -> tuple[tuple[Any, ...], bytes | None]:
    """Return a content as plain values, and its payload. A large payload is replaced by its size in the values."""
    if type(content) is Frame:
        data: Any = content.payload  # bytes, at its sender
        control = None if content.control is None else _dumped(content.control)
        exchange, sender, receiver = content.channel
        return (
            _FRAME,
            exchange,
            sender,
            receiver,
            data if data is None or len(data) <= _INLINE_MAX else len(data),
            content.rows,
            content.size,
            tuple(map(tuple, content.epochs)),
            control,
            content.incarnation,
            content.version,
        ), data
    if type(content) is Grant:
        return (_GRANT, *content.channel, content.incarnation, content.rows, content.size, content.window), None
    data = _dumped(content)
    return (_OTHER, data if len(data) <= _INLINE_MAX else len(data)), data


def _unpacked(item: tuple[Any, ...], run: ByteReader) -> Content:
    kind = item[0]
    if kind == _FRAME:
        _, exchange, sender, receiver, payload, rows, size, epochs, control, incarnation, version = item
        if type(payload) is int:
            payload = run.take(payload)
        return Frame(
            ChannelId(exchange, sender, receiver),
            payload,
            rows,
            size,
            tuple(map(PlacedEpoch._make, epochs)),
            None if control is None else pickles.load(control),
            incarnation,
            version,
        )
    if kind == _GRANT:
        _, exchange, sender, receiver, incarnation, rows, size, window = item
        return Grant(ChannelId(exchange, sender, receiver), incarnation, rows, size, window)
    data = item[1]
    content: Content = pickles.load(run.take(data) if type(data) is int else data)
    return content


def _dumped(content: Any) -> bytes:
    try:
        return pickles.dump(content)
    except NotEncodable as refused:
        # Only the state of a source for a part can have any type; all other types are the framework's.
        step = content.move.source if isinstance(content, PartHandedOver) else ""
        raise encode_error(refused, step=step, key=None, action="sent to another worker") from refused


def _why(error: Exception) -> str:
    return text_of(error) if isinstance(error, ImportError) else f"{describe_error(error)} while it was decoded"
