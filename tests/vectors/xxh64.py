"""XXH64 (seed 0) in plain Python, written from its specification, to check every published hash.

It has the function of the package ``xxhash`` that the hash of keys needs, and replaces the package where that is not
installed.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _rotate(x: int, by: int) -> int:
    return ((x << by) | (x >> (64 - by))) & MASK


def _round(accumulator: int, lane: int) -> int:
    return _rotate((accumulator + lane * P2) & MASK, 31) * P1 & MASK


def _merge(accumulator: int, value: int) -> int:
    return ((accumulator ^ _round(0, value)) * P1 + P4) & MASK


def xxh64_intdigest(data: bytes) -> int:
    """Return the hash of ``data`` as an unsigned integer of 64 bits."""
    at = 0
    if len(data) >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while at + 32 <= len(data):
            for i in range(4):
                lanes[i] = _round(lanes[i], int.from_bytes(data[at : at + 8], "little"))
                at += 8
        h = sum(_rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            h = _merge(h, lane)
    else:
        h = P5
    h = (h + len(data)) & MASK
    while at + 8 <= len(data):
        h = (_rotate(h ^ _round(0, int.from_bytes(data[at : at + 8], "little")), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= len(data):
        h = (_rotate(h ^ (int.from_bytes(data[at : at + 4], "little") * P1 & MASK), 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        h = _rotate(h ^ (byte * P5 & MASK), 11) * P1 & MASK
    h = (h ^ (h >> 33)) * P2 & MASK
    h = (h ^ (h >> 29)) * P3 & MASK
    return h ^ (h >> 32)
