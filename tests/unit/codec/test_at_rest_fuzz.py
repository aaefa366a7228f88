"""Damaged stored values, a short run; ``python -m tests.fuzz.codec --n 1000000`` reads 10^6 of them."""

from __future__ import annotations

import tracemalloc

import pytest

from malstrom_py.codec import Codec
from malstrom_py.errors import CodecError
from tests.fuzz.codec import BYTES_MAX, BYTES_PER_BYTE_MAX, VALUES, bytes_allocated, fuzz
from tests.fuzz.codec_values import table

CODEC = Codec(table())


def test_s8_damaged_bytes_give_a_typed_error_or_a_legal_value() -> None:
    outcome = fuzz(20_000, seed=8, measure_every=4)
    assert outcome.refused > outcome.legal > 0


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_no_truncation_is_read(value: object) -> None:
    data = CODEC.encode_at_rest(value, step="s")
    for end in range(len(data)):
        with pytest.raises(CodecError):
            CODEC.decode_at_rest(data[:end])


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x10" + b"\xdd\x00\x00\x27\x10" * 1000,
        b"\x10" + b"\xdc\xff\xff" * 1000 + b"\xc0" * 65535,
        b"\x10" + b"\x9f" * 1024,
        b"\x10" + b"\xdf\xff\xff\xff\xff\xc0",
        b"\x10\xdc\x07\xd0" + b"\x81\xc0\x90" * 2000,
        b"\x11\xdc\x07\xd0" + b"\x91\xc7\x00\x02" * 2000,
        b"\x11\xc9\xff\xff\xff\xff\x10",
        b"\x10\xdb\xff\xff\xff\xff",
        b"\x14\xff\xff\xff\xff",
        b"\x14\x05\x00\x00\x00\xdd\xff\xff\xff\xff\xc0",
    ],
    ids=lambda bomb: bomb[:8].hex(),
)
def test_what_bytes_claim_is_not_allocated(bomb: bytes) -> None:
    bytes_allocated(CODEC, bomb)
    tracemalloc.start()
    try:
        used = bytes_allocated(CODEC, bomb)
    finally:
        tracemalloc.stop()
    assert used <= BYTES_PER_BYTE_MAX * len(bomb) + BYTES_MAX
