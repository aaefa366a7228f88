"""Damages encoded values and reads them: the result is a typed error or a legal value, within the memory limit.

Run a long one with ``python -m tests.fuzz.codec --n 1000000``; a failure prints the bytes that caused it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import random
import time
import tracemalloc
import uuid
import zoneinfo
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from malstrom_py.codec import Codec
from malstrom_py.data.batch import Batch
from malstrom_py.errors import CodecError
from tests.fuzz.codec_values import Access, Colour, Frozen, Pair, Stats, Word, table

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")

VALUES: list[Any] = [
    None,
    {"count": 3, "sum": 1.5, "min": -0.0, "name": "UA", "ok": True},
    list(range(-40, 40)),
    [float("nan"), 2**63, 2**64, -(2**90), b"bytes", "text", "\ud800"],
    {(1, 2): (3, (4, ())), frozenset({1}): {2, 3}, "nested": [[[[{}]]]]},
    [
        dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
        dt.datetime.fromisoformat("0001-01-01"),
        dt.date(2013, 1, 2),
    ],
    [dt.time(1, 2, 3, 4), dt.time(1, tzinfo=dt.UTC), dt.timedelta(-1, 2, 3), dt.timezone(dt.timedelta(hours=2), "X")],
    [Decimal("1.50"), Decimal("-Infinity"), Decimal("1E+1000"), Decimal("sNaN12"), uuid.UUID(int=7), 1 + 2j],
    [Stats(1, Stats(2, Frozen("x"))), Pair(1, (2,)), Colour.BLUE, Word.YES, Access.READ | Access.WRITE],
    [np.int64(3), np.float32(1.5), np.bool_(True), np.datetime64(5, "ns"), np.str_("x"), np.zeros((2, 3))],
    {f"key-{n}": [n, n * 0.5, (n, str(n))] for n in range(30)},
    {n: {"left": n, "right": [n] * 20} for n in range(20)},
    BERLIN,
    "x" * 300,
]

BATCHES = [
    Batch([1, 2, 3], keys=["a", "b", "a"], timestamps=[5, 6, 7], part="p0"),
    Batch([1.5, None, "x", (1, 2)], keys=[1, True, 2**70, "k"]),
    Batch([]),
]

CLAIMS = [
    bytes.fromhex(claim) for claim in ("ddffffffff", "dcffff", "dfffffffff", "c6ffffffff", "c9ffffffff10", "dbffffffff")
]
"""Beginnings of containers that claim to be huge."""

BYTES_PER_BYTE_MAX = 200
BYTES_MAX = 1 << 16
"""What reading may allocate: so much per byte that is read, and so much in any case."""


@dataclass
class Outcome:
    """The counts of the results of damaged encodings."""

    refused: int = 0
    legal: int = 0
    bytes_per_byte: float = 0.0
    elapsed_s: float = 0.0


def damaged(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Return ``data`` with one to four random damages."""
    hurt = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(hurt) + 1)
        match chance.randrange(8):
            case 0 | 1:
                hurt[at : at + 1] = bytes(byte ^ (1 << chance.randrange(8)) for byte in hurt[at : at + 1])
            case 2:
                hurt[at : at + 1] = chance.randbytes(1)
            case 3:
                del hurt[at:]
            case 4:
                del hurt[at : at + chance.randrange(1, 9)]
            case 5:
                hurt[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 6:
                hurt[at : at + chance.randrange(6)] = chance.choice(CLAIMS) * chance.choice((1, 1, 50))
            case _:
                other = chance.choice(others)
                hurt[at:] = other[chance.randrange(len(other)) :]
    return bytes(hurt)


def bytes_allocated(codec: Codec, data: bytes) -> int:
    """Return the maximum memory for reading ``data``."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with contextlib.suppress(CodecError):
        codec.decode_at_rest(data)
    return tracemalloc.get_traced_memory()[1] - before


def check_at_rest(codec: Codec, data: bytes, outcome: Outcome) -> None:
    """Read ``data`` and check that the result can be stored again."""
    if tracemalloc.is_tracing():
        bound = BYTES_PER_BYTE_MAX * len(data) + BYTES_MAX
        used = bytes_allocated(codec, data)
        if used > bound:
            # The interpreter may have enlarged its table of interned strings, which happens once.
            used = bytes_allocated(codec, data)
        assert used <= bound, f"{used} bytes for {len(data)}"
        if len(data) > 1000:
            outcome.bytes_per_byte = max(outcome.bytes_per_byte, used / len(data))
    try:
        value = codec.decode_at_rest(data)
    except CodecError:
        outcome.refused += 1
    else:
        outcome.legal += 1
        codec.encode_at_rest(value, step="fuzz")


def check_in_flight(codec: Codec, data: bytes, whole: set[bytes], outcome: Outcome) -> None:
    """Read ``data`` as a batch and check that damage is an error."""
    try:
        codec.decode_batch(data)
    except CodecError:
        outcome.refused += 1
    else:
        assert data in whole, "a damaged batch was read"
        outcome.legal += 1


def fuzz(n: int, *, seed: int = 0, measure_every: int = 1) -> Outcome:
    """Read ``n`` damaged encodings; memory is measured for one run of 100 in ``measure_every``."""
    codec = Codec(table())
    at_rest = [codec.encode_at_rest(value, step="fuzz") for value in VALUES]
    batches = [codec.encode_batch(batch, step="fuzz") for batch in BATCHES]
    for data in at_rest:
        codec.decode_at_rest(data)
    outcome, chance, started_s = Outcome(), random.Random(seed), time.perf_counter()
    number, data = 0, b""
    try:
        for number in range(n):
            if number % 100 == 0:
                (tracemalloc.start if number // 100 % measure_every == 0 else tracemalloc.stop)()
            if number % 10:
                data = damaged(chance.choice(at_rest), chance, at_rest)
                check_at_rest(codec, data, outcome)
            else:
                data = damaged(chance.choice(batches), chance, batches)
                check_in_flight(codec, data, set(batches), outcome)
    except BaseException:
        print(f"seed {seed}, number {number}: bytes.fromhex({data.hex()!r})")
        raise
    finally:
        tracemalloc.stop()
    outcome.elapsed_s = time.perf_counter() - started_s
    return outcome


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000, help="how many damaged encodings")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--measure-every", type=int, default=10, help="measure memory in one run of 100 in so many")
    given = parser.parse_args()
    outcome = fuzz(given.n, seed=given.seed, measure_every=given.measure_every)
    print(
        f"{given.n:,} damaged encodings in {outcome.elapsed_s:.0f} s: {outcome.refused:,} refused, "
        f"{outcome.legal:,} read as legal values, at most {outcome.bytes_per_byte:.0f} bytes allocated per byte read"
    )


if __name__ == "__main__":
    main()
