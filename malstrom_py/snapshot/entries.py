"""Entries of a keyed artefact: the value and the timers of one key, each as bytes of its own, and back.

An entry is the stored form (S8) of the value, whose first byte is 0x10 or more; or, where the key has timers, the byte
0x01 and the stored form of ``[value, times]``, with a value of None where it has nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from malstrom_py.codec import Codec
from malstrom_py.codec.refusal import cannot_decode
from malstrom_py.errors import CodecError

_TIMED: Final = b"\x01"


def encoded_entries(
    codec: Codec, keys: Sequence[Any], values: Sequence[Any], times: Mapping[Any, Sequence[int]], *, step: str
) -> list[bytes]:
    r"""The entries of ``keys``, which have ``values``, and some ``times``. `CodecError` names the key of one that
    cannot be stored.

    >>> encoded_entries(Codec(), ["a", "b"], [7, None], {"b": [9]}, step="s")
    [b'\x10\x07', b'\x01\x10\x92\xc0\x91\t']
    """
    if not times:
        return codec.encode_each_at_rest(values, step=step, keys=keys)
    timed = {place: times[key] for place, key in enumerate(keys) if key in times}
    plain = [None if place in timed else value for place, value in enumerate(values)]
    entries = codec.encode_each_at_rest(plain, step=step, keys=keys)
    for place, woken in timed.items():
        entries[place] = _TIMED + codec.encode_at_rest([values[place], list(woken)], step=step, key=keys[place])
    return entries


def decoded_entries(
    codec: Codec, keys: Sequence[Any], entries: Sequence[bytes], *, step: str
) -> tuple[list[Any], dict[Any, list[int]]]:
    r"""The values of ``keys`` that have these ``entries``, and the times of those that have timers.

    Raises:
        CodecError: an entry is none.

    >>> decoded_entries(Codec(), ["a", "b"], [b"\x10\x07", b"\x01\x10\x92\xc0\x91\t"], step="s")
    ([7, None], {'b': [9]})
    """
    timed = [place for place, entry in enumerate(entries) if entry[:1] == _TIMED]
    forms = list(entries)
    for place in timed:
        forms[place] = entries[place][1:]
    values = codec.decode_each_at_rest(forms, step=step, keys=keys)
    times: dict[Any, list[int]] = {}
    for place in timed:
        values[place], times[keys[place]] = _timed(values[place], step, keys[place])
    return values, times


def _timed(pair: Any, step: str, key: Any) -> tuple[Any, list[int]]:
    if type(pair) is list and len(pair) == 2 and type(pair[1]) is list and pair[1]:
        value, times = pair
        if set(map(type, times)) == {int}:
            return value, times
    raise _not_timed(step, key)


def _not_timed(step: str, key: Any) -> CodecError:
    return cannot_decode("it should be a value and times, and is not", step=step, key=key)
