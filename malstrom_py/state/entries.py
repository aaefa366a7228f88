"""The stored state of one key, in artefacts and on disk: its value and its times.

An entry is the stored form (S8) of the value, whose first byte is 0x10 or more; or, if the key has timers, the byte
0x01 and the stored form of ``[value, times]``, where the value is None if the key has only timers. A key with timers of
the runtime's clock, or whose state expires, has the byte 0x02 and ``[value, times, times by the clock, until]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack
from typing import Any, Final, NamedTuple

import msgpack

from malstrom_py.codec import Codec
from malstrom_py.codec.at_rest import CLASSES
from malstrom_py.codec.encoding_errors import decode_error

_TIMED: Final = b"\x01"
_DATED: Final = b"\x02"


class Times(NamedTuple):
    """The times of a key: its ``timers``, those ``by_clock`` of the runtime, and ``until`` when its state lasts."""

    timers: Sequence[int] = ()
    by_clock: Sequence[int] = ()
    until: int | None = None


NO_TIMES: Final = Times()

TIMERS, BY_CLOCK, ENDS, NEEDED = range(4)
"""By what a key is due: its first timer, that of the runtime's clock, the end of its state, `StepValues.due_at`."""


class Held(NamedTuple):
    """States of ``keys``: ``values``, and the ``times`` of those that have some.

    ``ends``: until when each lasts, if they have no other times; ``times`` is empty then.
    """

    keys: Sequence[Any]
    values: list[Any]
    times: dict[Any, Times]
    ends: Sequence[int] | None = None


_NONE: Final = b"\x90"
"""No timers."""

_SHORT, _LONG = 4, 8
_MARKS: Final = {_SHORT: b"\xce", _LONG: b"\xcf"}
"""How msgpack begins an integer of so many bytes more."""


def encoded_entries(
    codec: Codec, keys: Sequence[Any], values: Sequence[Any], times: Mapping[Any, Times], *, step: str
) -> list[bytes]:
    r"""Encode the entries of ``keys``, with their ``values``, and ``times`` of some. `CodecError` names the key of one
    that cannot be stored.

    >>> encoded_entries(Codec(), ["a", "b"], [7, None], {"b": Times([9])}, step="s")
    [b'\x10\x07', b'\x01\x10\x92\xc0\x91\t']
    """
    entries = codec.encode_each_at_rest(values, step=step, keys=keys)
    for place, of_key in enumerate(map(times.get, keys)) if times else ():
        if of_key is not None:
            entry = _around(entries[place], of_key)
            if entry is None:
                form = _form(values[place], of_key)
                (entry,) = codec.encode_each_at_rest([form], step=step, keys=[keys[place]])
                entry = (_TIMED if len(form) == 2 else _DATED) + entry
            entries[place] = entry
    return entries


def is_timed(entry: bytes) -> bool:
    """Return whether an entry has times."""
    return entry[:1] in (_TIMED, _DATED)


def _around(form: bytes, times: Times) -> bytes | None:
    """Return the entry of a stored value, the bytes that encoding both together gives; None: do that."""
    if form[0] & CLASSES:
        return None
    timers, by_clock, until = times
    try:
        if not (by_clock or until is not None):
            return b"\x01%b\x92%b%b" % (form[:1], form[1:], _packed(timers))
        return b"\x02%b\x94%b%b%b%b" % (form[:1], form[1:], _packed(timers), _packed(by_clock), _packed(until))
    except OverflowError:  # msgpack has no integers beyond 64 bits
        return None


def _packed(times: Sequence[int] | int | None) -> bytes:
    if times is None or isinstance(times, int):
        packed: Any = msgpack.packb(times)
    else:
        packed = msgpack.packb(list(times)) if times else _NONE
    return bytes(packed)


def with_ends(forms: Sequence[bytes], ends: Sequence[int]) -> list[bytes] | None:
    r"""Return the entries of stored values that last until ``ends``, at the speed of C; None: encode them otherwise.

    >>> with_ends([b"\x10\x07"], [1 << 32]), without_ends(with_ends([b"\x10\x07"], [1 << 20]), [1 << 20])
    ([b'\x02\x10\x94\x07\x90\x90\xcf\x00\x00\x00\x01\x00\x00\x00\x00'], [b'\x10\x07'])
    """
    size = _size_of(ends)
    if size is None or any(head & CLASSES for head in {form[0] for form in forms}):
        return None
    packed = pack(f">{len(ends)}{'Q' if size == _LONG else 'I'}", *ends)
    tails = [_NONE + _NONE + _MARKS[size] + packed[start : start + size] for start in range(0, len(packed), size)]
    return [b"\x02%b\x94%b%b" % (form[:1], form[1:], tail) for form, tail in zip(forms, tails, strict=True)]


def without_ends(entries: Sequence[bytes], ends: Sequence[int]) -> list[bytes] | None:
    """Return the stored values in entries with no times but ``ends``; None: decode the entries."""
    size = _size_of(ends)
    if size is None or any(head & CLASSES for head in {entry[1] for entry in entries}):
        return None
    tail = 2 * len(_NONE) + 1 + size
    return [entry[1:2] + entry[3:-tail] for entry in entries]


def _size_of(ends: Sequence[int]) -> int | None:
    """Return how many bytes msgpack has for each of ``ends``; None if not the same for all, or few."""
    first, last = min(ends), max(ends)
    if first >= 1 << 32:
        return _LONG if last < (1 << 63) - 1 else None  # in an index the last is that of later ones, too
    return _SHORT if first >= 1 << 16 and last < 1 << 32 else None


def _form(value: Any, times: Times) -> list[Any]:
    timers, by_clock, until = times
    if by_clock or until is not None:
        return [value, list(timers), list(by_clock), until]
    return [value, list(timers)]


def decoded_entries(
    codec: Codec, keys: Sequence[Any], entries: Sequence[bytes], *, step: str
) -> tuple[list[Any], dict[Any, Times]]:
    r"""Decode ``entries``: the values of ``keys``, and the times of those that have some.

    Raises:
        CodecError: an entry is not valid.

    >>> decoded_entries(Codec(), ["a", "b"], [b"\x10\x07", b"\x01\x10\x92\xc0\x91\t"], step="s")
    ([7, None], {'b': Times(timers=[9], by_clock=(), until=None)})
    """
    timed = [place for place, entry in enumerate(entries) if entry[:1] in (_TIMED, _DATED)]
    forms = list(entries)
    for place in timed:
        forms[place] = entries[place][1:]
    values = codec.decode_each_at_rest(forms, step=step, keys=keys)
    times: dict[Any, Times] = {}
    for place in timed:
        values[place], times[keys[place]] = _timed(values[place], entries[place][:1], step, keys[place])
    return values, times


def _timed(form: Any, kind: bytes, step: str, key: Any) -> tuple[Any, Times]:
    if type(form) is list and len(form) == (2 if kind == _TIMED else 4):
        value, timers, by_clock, until = form if kind == _DATED else [*form, [], None]
        if type(timers) is list and type(by_clock) is list:
            found = [*timers, *by_clock, *(() if until is None else (until,))]
            if set(map(type, found)) == {int}:
                return value, Times(timers, by_clock or (), until)
    raise decode_error("it should be a value and times, and is not", step=step, key=key)
