"""The stored form of values, as it is written: one byte of version and flags, the classes in use, then msgpack (S8).

Rule: a value comes back as exactly the type it went in, or is refused when it is written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from gc import get_referents
from itertools import chain
from typing import Any, Final

import msgpack

from malstrom_py.codec.extensions import FROZENSET, MARKS, OBJECT, SET, TUPLE, extension_of
from malstrom_py.codec.limits import Limits
from malstrom_py.codec.refusal import Refused, cannot_encode, refusal_of
from malstrom_py.codec.sweep import PLAIN, sweep, too_deep, too_many
from malstrom_py.codec.types import Registered, TypeTable

VERSION: Final = 0x10
EXTENDED: Final = 0x01  # holds extensions
SURROGATES: Final = 0x02  # a str holds what is no Unicode character
CLASSES: Final = 0x04  # a table of classes stands before the value
FLAGS: Final = EXTENDED | SURROGATES | CLASSES

HEADERS: Final = [bytes((VERSION | flags,)) for flags in range(FLAGS + 1)]

SIZE: Final = struct.Struct("<I")
_BUFFER_BYTES: Final = 1 << 16
_KEEP_BYTES_MAX: Final = 1 << 20  # msgpack's buffer never shrinks: after a larger value the packer is made anew

_MARKS: Final = {code: msgpack.ExtType(code, b"") for code in sorted(MARKS)}


class AtRestEncoder:
    """Writes values. Not for several threads at once.

    >>> from malstrom_py.codec.at_rest_reading import decode_at_rest
    >>> encoder = AtRestEncoder(TypeTable(), Limits())
    >>> data = encoder.encode({"best": (3, 4.5)}, step="top")
    >>> decode_at_rest(data, TypeTable(), Limits())
    {'best': (3, 4.5)}
    """

    def __init__(self, types: TypeTable, limits: Limits) -> None:
        self._types = types
        self._limits = limits
        self._flags = 0
        self._count = 0
        self._classes: dict[type, tuple[int, Registered]] = {}
        self._last_table: tuple[tuple[type, ...], bytes] = ((), b"")
        self._packer = self._new_packer(None)

    def encode(self, value: Any, *, step: str, key: Any = None) -> bytes:
        """``value`` in its stored form. `CodecError` if it, or a value in it, has none."""
        try:
            packed = self._pack(value)
        except Refused as refused:
            raise cannot_encode(refused, step=step, key=key, action="stored") from None
        if len(packed) > self._limits.bytes_max:
            why = f"it takes {len(packed):,} bytes, and the limit is {self._limits.bytes_max:,}"
            raise cannot_encode(Refused(type(value), why), step=step, key=key, action="stored")
        return packed

    def encode_each(self, values: Sequence[Any], *, step: str, keys: Sequence[Any]) -> list[bytes]:
        """Each of ``values`` in a stored form of its own, as `encode` gives it; ``keys`` are for errors.

        Where all are plain, or all are tuples, or all lists, of plain values, no Python is run for each value within.
        """
        kinds = set(map(type, values))
        packed = self._pack_alike(values, kinds.pop()) if len(kinds) == 1 else self._pack_plain(values, kinds)
        if packed is not None and len(max(packed, key=len, default=b"")) <= self._limits.bytes_max:
            return packed
        return [self.encode(value, step=step, key=key) for key, value in zip(keys, values, strict=True)]

    def _pack_alike(self, values: Sequence[Any], kind: type) -> list[bytes] | None:
        """Values of one ``kind``, each in its stored form; None if they are none that can be packed at once."""
        if kind is not tuple and kind is not list:
            return self._pack_plain(values, {kind})
        longest = len(max(values, key=len))
        if longest > self._limits.items_max or not PLAIN.issuperset(map(type, chain.from_iterable(values))):
            return None
        if kind is list:
            return self._pack_all(values, 0)
        mark = _MARKS[TUPLE]
        return self._pack_all(([mark, *value] for value in values), EXTENDED)

    def _pack_plain(self, values: Sequence[Any], kinds: set[type]) -> list[bytes] | None:
        return self._pack_all(values, 0) if kinds <= PLAIN else None

    def _pack_all(self, values: Iterable[Any], flags: int) -> list[bytes] | None:
        """``values`` packed, behind a header of ``flags``; None if one of them needs other flags."""
        self._flags = flags
        try:
            packed = list(map(self._packer.pack, values))
        except UnicodeEncodeError:
            self._packer = self._new_packer(None)
            return None
        return list(map(HEADERS[flags].__add__, packed)) if self._flags == flags else None

    def _pack(self, value: Any) -> bytes:
        packed: bytes
        self._flags = self._count = 0
        if self._classes:
            self._classes = {}
        kind = type(value)
        try:
            if kind is dict or kind is list:
                self._look_into(get_referents(value), kind)
            elif kind not in PLAIN:
                self._look_into([value], kind)
            try:
                packed = self._packer.pack(value)
            except UnicodeEncodeError:
                self._classes, self._count = {}, 0
                packed = self._new_packer("surrogatepass").pack(value)
                self._flags |= SURROGATES
        except ValueError as error:  # of msgpack: its recursion limit, or a container beyond 32 bits
            raise _over_limit(kind, error) from error
        except RecursionError as error:
            raise too_deep(kind) from error
        if self._count > self._limits.items_max:
            raise too_many(kind, self._limits.items_max)
        if len(packed) > _KEEP_BYTES_MAX:
            self._packer = self._new_packer(None)
        if self._classes:
            return HEADERS[self._flags | CLASSES] + self._table() + packed
        return HEADERS[self._flags] + packed

    def _table(self) -> bytes:
        """The table of the classes that a value is made of; mostly it is that of the last one."""
        kinds = tuple(self._classes)
        known, table = self._last_table
        if kinds != known:
            packed: bytes = self._packer.pack([[entry.name, *entry.shape] for _, entry in self._classes.values()])
            table = SIZE.pack(len(packed)) + packed
            self._last_table = kinds, table
        return table

    def _new_packer(self, unicode_errors: str | None) -> Any:
        return msgpack.Packer(
            default=self._extend, strict_types=True, unicode_errors=unicode_errors, buf_size=_BUFFER_BYTES
        )

    def _look_into(self, items: list[Any], kind: type) -> None:
        """Count ``items``, the contents of a ``kind``, and refuse what msgpack would take for something else."""
        limit = self._limits.items_max
        self._count += len(items) if PLAIN.issuperset(map(type, items)) else sweep(items, limit)
        if self._count > limit:
            raise too_many(kind, limit)

    def _extend(self, value: Any) -> Any:
        """What msgpack packs in place of a value that it does not take: an extension, or a list behind a mark."""
        self._flags |= EXTENDED
        kind = type(value)
        if kind is tuple:
            if PLAIN.issuperset(map(type, value)):
                self._count += len(value)
                return [_MARKS[TUPLE], *value]
            return self._marked(TUPLE, value, value)
        if kind is set:
            return self._marked(SET, value, value)
        if kind is frozenset:
            return self._marked(FROZENSET, value, value)
        known = self._classes.get(kind)
        if known is None:
            extension = extension_of(value)
            if extension is not None:
                return msgpack.ExtType(*extension)
            entry = self._types.of_type(kind)
            if entry is None:
                raise refusal_of(kind)
            known = self._classes[kind] = len(self._classes), entry
        index, entry = known
        return self._marked(OBJECT, value, entry.take_apart(value), index)

    def _marked(self, code: int, value: Any, parts: Iterable[Any], *before: int) -> list[Any]:
        contents = [*parts]
        self._look_into(contents, type(value))
        return [_MARKS[code], *before, *contents]


def _over_limit(kind: type, error: ValueError) -> Refused:
    if "recursion" in str(error):
        return too_deep(kind)
    return Refused(kind, "a part of it is longer than the stored form can say (2**32 - 1). Split it into several keys")
