"""Record batches of the second format (KIP-98), as bytes: their headers are read, their records are not."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = _HEADER.size
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_AFTER_CRC: Final = 21


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901
        table.append(byte)
    return table


_TABLE: Final = _table()


def crc32c(data: bytes) -> int:
    """Return the checksum of Castagnoli.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@dataclass(frozen=True)
class StoredBatch:
    """A batch in a log. ``base``: the offset of its first record, ``last``: of its last one."""

    base: int
    last: int
    producer: int
    epoch: int
    sequence: int
    time_ms: int
    is_transactional: bool
    is_control: bool
    data: bytes


def stored(data: bytes, base: int) -> StoredBatch:
    """Return the batch in ``data`` with its records at ``base`` and after."""
    fields = _HEADER.unpack_from(data)
    _, length, _, magic, _, attributes, last_delta, _, max_time, producer, epoch, sequence, _ = fields
    assert magic == 2, "clients write the second format"
    placed = struct.pack(">qii", base, length, 0) + data[16 : 12 + length]
    return StoredBatch(
        base,
        base + last_delta,
        producer,
        epoch,
        sequence,
        max_time,
        bool(attributes & _TRANSACTIONAL),
        bool(attributes & _CONTROL),
        placed,
    )


def split(data: bytes) -> list[bytes]:
    """Cut what a client sends into batches."""
    found = []
    while data:
        end = 12 + int(struct.unpack_from(">i", data, 8)[0])
        found.append(data[:end])
        data = data[end:]
    return found


def control(producer: int, epoch: int, *, is_commit: bool, time_ms: int) -> bytes:
    """Return the batch that ends a transaction."""
    key = struct.pack(">hh", 0, 1 if is_commit else 0)
    value = struct.pack(">hi", 0, 0)
    record = b"\x00" + _varint(0) + _varint(0) + _varint(len(key)) + key + _varint(len(value)) + value + _varint(0)
    record = _varint(len(record)) + record
    after = struct.pack(">hiqqqhii", _TRANSACTIONAL | _CONTROL, 0, time_ms, time_ms, producer, epoch, -1, 1)
    length = HEADER_BYTES - 12 + len(record)
    return struct.pack(">qiibI", 0, length, 0, 2, crc32c(after + record)) + after + record


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


@dataclass(frozen=True)
class StoredRecord:
    """A record in a log."""

    offset: int
    key: bytes | None
    value: bytes | None


def records_in(batch: StoredBatch) -> list[StoredRecord]:
    """Return the records of a batch that is not compressed."""
    data, at, found = batch.data, HEADER_BYTES, []
    assert not struct.unpack_from(">h", data, _AFTER_CRC)[0] & 0x7, "it is compressed"

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)

    def field_() -> bytes | None:
        nonlocal at
        length = varint()
        if length < 0:
            return None
        at += length
        return data[at - length : at]

    while at < len(data):
        end = varint() + at
        at += 1
        varint()
        offset = batch.base + varint()
        found.append(StoredRecord(offset, field_(), field_()))
        at = end
    return found
