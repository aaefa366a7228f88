"""The stored form of values (S8), written and read: one byte of version and flags, the classes in use, then msgpack.

Rule: a value is decoded to exactly the type it had, or writing it is an error.

Rule: stored bytes are data, never code. Classes are found in the job's `TypeTable` only, and every claim of the bytes
(lengths, indices, classes) is checked before it is used.

Before packing, `sweep` finds the values that msgpack would silently change: it packs bytearray and memoryview as bytes,
and its own ExtType and Timestamp as extensions. `sweep` walks lists and dicts at the speed of C (the garbage collector
lists the contents of a container). msgpack passes every other value that is not plain to the encoder, which sweeps the
contents of that value in turn.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cached_property
from gc import get_referents
from itertools import accumulate, chain, islice
from typing import Any, Final

import msgpack
from msgpack import ExtType, Timestamp

from malstrom_py.codec.encoding_errors import (
    Limits,
    NotDecodable,
    NotEncodable,
    decode_error,
    encode_error,
    not_encodable,
)
from malstrom_py.codec.extensions import FROZENSET, MARKS, OBJECT, SET, TUPLE, extension_of, value_of
from malstrom_py.codec.types import ClassCodec, TypeTable
from malstrom_py.errors import CodecError

PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})
"""Types without contents that msgpack packs and unpacks exactly. It passes ints beyond 64 bits to the encoder."""

_MISTAKEN: Final = frozenset({bytearray, memoryview, ExtType, Timestamp})
_LEVELS_MAX: Final = 1024
_AT_ONCE: Final = 4096


def sweep(items: Sequence[Any], items_max: int) -> int:
    """Count the values in ``items``, at any depth of lists and dicts.

    Raises:
        NotEncodable: a value is of a type that msgpack would change, or there are more than ``items_max`` (as in a list
            that contains itself).
    """
    count = len(items)
    kinds = set(map(type, items))
    level = _containers(items, kinds)
    for _ in range(_LEVELS_MAX):
        if not level:
            break
        count += sum(map(len, level))
        if count > items_max:
            raise too_many(type(level[0]), items_max)
        below: list[Any] = []
        containers = iter(level)
        while chunk := list(islice(containers, _AT_ONCE)):
            contents = get_referents(*chunk)
            below += _containers(contents, set(map(type, contents)))
        level = below
    if level:
        raise too_deep(type(level[0]))
    return count


def too_deep(kind: type) -> NotEncodable:
    """Return the error of a value that is nested too deep."""
    return NotEncodable(kind, "it is nested too deep, or contains itself. Store it flat")


def too_many(kind: type, items_max: int) -> NotEncodable:
    """Return the error of a value with too many parts."""
    return NotEncodable(kind, f"there are more than {items_max:,} values in it. Split it into several keys")


def _refusal(kind: type) -> NotEncodable:
    if kind is ExtType or kind is Timestamp:
        return NotEncodable(kind, "it belongs to msgpack itself. Store its parts, or a datetime")
    return not_encodable(kind)


def _containers(items: Sequence[Any], kinds: set[type]) -> list[Any]:
    if kinds <= PLAIN:
        return []
    mistaken = kinds & _MISTAKEN
    if mistaken:
        raise _refusal(mistaken.pop())
    if list not in kinds and dict not in kinds:
        return []
    return [item for item in items if type(item) is list or type(item) is dict]


VERSION: Final = 0x10
EXTENDED: Final = 0x01  # holds extensions
SURROGATES: Final = 0x02  # a str holds a lone surrogate, which is not a Unicode character
CLASSES: Final = 0x04  # a table of classes precedes the value
FLAGS: Final = EXTENDED | SURROGATES | CLASSES

HEADERS: Final = [bytes((VERSION | flags,)) for flags in range(FLAGS + 1)]

SIZE: Final = struct.Struct("<I")
_BUFFER_BYTES: Final = 1 << 16
_KEEP_BYTES_MAX: Final = 1 << 20  # msgpack's buffer never shrinks: a larger value is followed by a new packer

_RUN_BYTES: Final = 1 << 17

_MARKS: Final = {code: msgpack.ExtType(code, b"") for code in sorted(MARKS)}

_LISTS: Final = {bytes((0x91 + items, 0xC7, 0, TUPLE)): bytes((0x90 + items,)) for items in range(15)}
"""How a stored tuple begins (an array, with a mark as its first item) -> how a list of as many items begins."""


class AtRestEncoder:
    """Writer of the stored form. Not thread-safe.

    >>> from malstrom_py.codec.at_rest import decode_at_rest
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
        self._classes: dict[type, tuple[int, ClassCodec]] = {}
        self._last_table: tuple[tuple[type, ...], bytes] = ((), b"")

    @cached_property
    def _packer(self) -> Any:
        """The packer: its buffer is large, and many a codec never stores anything."""
        return self._new_packer(None)

    def encode(self, value: Any, *, step: str, key: Any = None) -> bytes:
        """Return ``value`` in its stored form. `CodecError` if it, or a value in it, cannot be stored."""
        try:
            packed = self._pack(value)
        except NotEncodable as refused:
            raise encode_error(refused, step=step, key=key, action="stored") from None
        if len(packed) > self._limits.bytes_max:
            why = f"it takes {len(packed):,} bytes, and the limit is {self._limits.bytes_max:,}"
            raise encode_error(NotEncodable(type(value), why), step=step, key=key, action="stored")
        return packed

    def encode_each(self, values: Sequence[Any], *, step: str, keys: Sequence[Any]) -> list[bytes]:
        """Return the stored form of each of ``values``, as by `encode`; ``keys`` are for errors.

        For plain values, and for tuples or lists of plain values, no Python code runs per value.
        """
        kinds = set(map(type, values))
        packed = self._pack_alike(values, kinds.pop()) if len(kinds) == 1 else self._pack_plain(values, kinds)
        if packed is not None and len(max(packed, key=len, default=b"")) <= self._limits.bytes_max:
            return packed
        return [self.encode(value, step=step, key=key) for key, value in zip(keys, values, strict=True)]

    def _pack_alike(self, values: Sequence[Any], kind: type) -> list[bytes] | None:
        """Pack each of the values of one ``kind``; return None if the fast path does not apply."""
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
        """Pack each of ``values`` after a header of ``flags``; return None if one needs other flags."""
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
        """Return the packed table of the classes in a value; the last table is cached."""
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
        """Count ``items``, the contents of a ``kind``. `NotEncodable` for a value that msgpack would change."""
        limit = self._limits.items_max
        self._count += len(items) if PLAIN.issuperset(map(type, items)) else sweep(items, limit)
        if self._count > limit:
            raise too_many(kind, limit)

    def _extend(self, value: Any) -> Any:
        """Return what msgpack packs in place of a value that it does not know: an extension, or a list with a mark."""
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
                raise not_encodable(kind)
            known = self._classes[kind] = len(self._classes), entry
        index, entry = known
        return self._marked(OBJECT, value, entry.take_apart(value), index)

    def _marked(self, code: int, value: Any, parts: Iterable[Any], *before: int) -> list[Any]:
        contents = [*parts]
        self._look_into(contents, type(value))
        return [_MARKS[code], *before, *contents]


class OrderedEncoder(AtRestEncoder):
    """Writer of stored forms to compare: equal sets have the same, though they may be iterated in different orders.

    >>> encoder = OrderedEncoder(TypeTable(), Limits())
    >>> encoder.encode({0, 8}, step="top") == encoder.encode({8, 0}, step="top")
    True
    """

    @cached_property
    def _of_members(self) -> OrderedEncoder:
        return OrderedEncoder(self._types, self._limits)

    def _extend(self, value: Any) -> Any:
        kind = type(value)
        if kind is not set and kind is not frozenset:
            return super()._extend(value)
        self._flags |= EXTENDED
        ordered = sorted(value, key=lambda member: self._of_members.encode(member, step=""))
        return self._marked(SET if kind is set else FROZENSET, value, ordered)


def _over_limit(kind: type, error: ValueError) -> NotEncodable:
    if "recursion" in str(error):
        return too_deep(kind)
    return NotEncodable(
        kind, "a part of it is longer than the stored form allows (2**32 - 1). Split it into several keys"
    )


class _Mark:
    """The first item of a list that decodes to another type. Never leaves the decoder."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


_MARK_OBJECTS: Final = {code: _Mark(code) for code in MARKS}


class _Reader:
    """The hooks of one decoding: msgpack builds lists and passes them here, innermost first."""

    def __init__(self, classes: list[ClassCodec]) -> None:
        self._classes = classes
        self.open_marks = 0

    def extension(self, code: int, data: bytes) -> Any:
        mark = _MARK_OBJECTS.get(code)
        if mark is None:
            return value_of(code, data)
        if data:
            raise NotDecodable("a mark has contents")
        self.open_marks += 1
        return mark

    def container(self, items: list[Any]) -> Any:
        if not items or type(items[0]) is not _Mark:
            return items
        self.open_marks -= 1
        code: int = items[0].code
        if code == OBJECT:
            return self._object(items)
        del items[0]
        if code == TUPLE:
            return tuple(items)
        return set(items) if code == SET else frozenset(items)

    def _object(self, items: list[Any]) -> Any:
        if len(items) < 2 or type(items[1]) is not int or not 0 <= items[1] < len(self._classes):
            raise NotDecodable("an object is of an unknown class")
        return self._classes[items[1]].put_together(items[2:])


def decode_at_rest(
    data: bytes | memoryview, types: TypeTable, limits: Limits, *, step: str = "", key: Any = None
) -> Any:
    """Return the value whose stored form is ``data``. `CodecError` if ``data`` is not a stored form."""
    try:
        return _decode(memoryview(data), types, limits)
    except (CodecError, MemoryError):
        raise
    except NotDecodable as error:
        raise decode_error(str(error), step=step, key=key) from error
    except Exception as error:
        # msgpack, a constructor or a hash failed on invalid bytes. The text of the error may contain values.
        raise decode_error(f"it is damaged ({type(error).__name__})", step=step, key=key) from error


def decode_each(
    forms: Sequence[bytes], types: TypeTable, limits: Limits, *, step: str = "", keys: Sequence[Any] | None = None
) -> list[Any]:
    """Return the values whose stored forms are ``forms``. `CodecError` if one is invalid; ``keys`` are for errors.

    >>> from malstrom_py.codec.at_rest import AtRestEncoder
    >>> encoder = AtRestEncoder(TypeTable(), Limits())
    >>> decode_each(encoder.encode_each([(1, "a"), (2, "b")], step="top", keys="xy"), TypeTable(), Limits())
    [(1, 'a'), (2, 'b')]
    """
    named: Sequence[Any] = [None] * len(forms) if keys is None else keys
    values: list[Any] = [None] * len(forms)
    for head, places in _runs_of(forms).items():
        some = [forms[place] for place in places]
        try:
            run = _decode_run(head, some, types, limits)
        except MemoryError:
            raise
        except Exception:
            # Decode one by one, so that the error names the key.
            run = [decode_at_rest(forms[at], types, limits, step=step, key=named[at]) for at in places]
        if len(places) == len(forms):
            return run
        for place, value in zip(places, run, strict=True):
            values[place] = value
    return values


def _runs_of(forms: Sequence[bytes]) -> dict[bytes, Sequence[int]]:
    """Group the indices of ``forms`` by their beginning: the header and the table of classes."""
    heads = {form[:1] for form in forms}
    if len(heads) == 1 and not _has_classes(next(iter(heads))):
        return {heads.pop(): range(len(forms))}
    runs: dict[bytes, list[int]] = {}
    for place, form in enumerate(forms):
        head = form[:1]
        if _has_classes(head) and len(form) > SIZE.size:
            head = form[: 1 + SIZE.size + SIZE.unpack_from(form, 1)[0]]
        if head in runs:
            runs[head].append(place)
        else:
            runs[head] = [place]
    return dict(runs)


def _has_classes(head: bytes) -> bool:
    return bool(head) and bool(head[0] & CLASSES)


def _decode_run(head: bytes, forms: Sequence[bytes], types: TypeTable, limits: Limits) -> list[Any]:
    """Decode ``forms``, which all begin with ``head``; check that each value ends where its form ends."""
    if len(max(forms, key=len)) > limits.bytes_max:
        raise NotDecodable("one of them is too large")
    # A run stays in the processor's cache: decoded from one large buffer, values of 5 kB take five times as long.
    count = max(1, _RUN_BYTES * len(forms) // sum(map(len, forms)))
    if count < len(forms):
        runs = (forms[start : start + count] for start in range(0, len(forms), count))
        return [value for run in runs for value in _decode_run(head, run, types, limits)]
    flags, reader, start = _opened(memoryview(head), types, limits)
    if flags == EXTENDED and (tuples := _decode_tuples(forms, limits)) is not None:
        return tuples
    values = _unpack_each([form[start:] for form in forms], limits, **_hooks(flags, reader))
    if reader.open_marks or _Mark in set(map(type, values)):
        raise NotDecodable("a mark is at a place where none is allowed")
    return values


def _decode_tuples(forms: Sequence[bytes], limits: Limits) -> list[Any] | None:
    """Decode tuples of one length without a call of Python for each, as lists; None if ``forms`` are others, or if
    their items need more than msgpack.
    """
    as_list = _LISTS.get(forms[0][1:5])
    if as_list is None or any(map(forms[0][1:5].__ne__, [form[1:5] for form in forms])):
        return None
    try:
        return list(map(tuple, _unpack_each([as_list + form[5:] for form in forms], limits, ext_hook=_no_extension)))
    except MemoryError:
        raise
    except Exception:  # it is decoded with all that a value may have, or its error is found
        return None


def _unpack_each(bodies: Sequence[bytes], limits: Limits, **options: Any) -> list[Any]:
    raw = b"".join(bodies)
    if b"\xdc" in raw or b"\xdd" in raw:  # as in `_unpack`
        runner = msgpack.Unpacker(max_buffer_size=len(raw))
        runner.feed(raw)
        for _ in bodies:
            runner.skip()
    unpacker = msgpack.Unpacker(
        strict_map_key=False,
        timestamp=3,
        max_buffer_size=max(1, len(raw)),
        max_array_len=limits.items_max,
        max_map_len=limits.items_max,
        **options,
    )
    unpacker.feed(raw)
    values = []
    for end in accumulate(map(len, bodies)):
        values.append(unpacker.unpack())
        if unpacker.tell() != end:
            raise NotDecodable("it ends at the wrong byte")
    return values


def _opened(data: memoryview, types: TypeTable, limits: Limits) -> tuple[int, _Reader, int]:
    """Read the header of a value: return the flags, a reader that knows the classes, and the start of the value."""
    if not data:
        raise NotDecodable("it is empty")
    flags = data[0] ^ VERSION
    if flags > FLAGS:
        raise NotDecodable(f"this version does not know its format {data[0]:#04x}")
    if not flags & CLASSES:
        return flags, _Reader([]), 1
    start = 1 + SIZE.size
    end = start + SIZE.unpack_from(data, 1)[0]
    if end > len(data):
        raise NotDecodable("it ends too soon")
    return flags, _Reader(_classes_of(_unpack(data[start:end], limits), types)), end


def _hooks(flags: int, reader: _Reader) -> dict[str, Any]:
    """Return the options of msgpack's unpacker for a value with ``flags``."""
    return {
        "unicode_errors": "surrogatepass" if flags & SURROGATES else None,
        "list_hook": reader.container if flags & EXTENDED else None,
        "ext_hook": reader.extension if flags & EXTENDED else _no_extension,
    }


def _decode(data: memoryview, types: TypeTable, limits: Limits) -> Any:
    if len(data) > limits.bytes_max:
        raise NotDecodable(f"it has {len(data):,} bytes, and the limit is {limits.bytes_max:,}")
    flags, reader, start = _opened(data, types, limits)
    body = data[start:]
    if not flags:
        return _unpack(body, limits, ext_hook=_no_extension)
    value = _unpack(body, limits, **_hooks(flags, reader))
    if reader.open_marks or type(value) is _Mark:
        raise NotDecodable("a mark is at a place where none is allowed")
    return value


def _unpack(data: memoryview, limits: Limits, **options: Any) -> Any:
    raw = bytes(data)
    # msgpack allocates the claimed length of an array (16 or 32 bits), and claims can be nested. A first pass without
    # building anything fails where the bytes end.
    if b"\xdc" in raw or b"\xdd" in raw:
        runner = msgpack.Unpacker(max_buffer_size=len(raw))
        runner.feed(raw)
        runner.skip()
    return msgpack.unpackb(
        raw,
        strict_map_key=False,
        timestamp=3,  # msgpack's own extension, which is never written, would be decoded to a class of msgpack
        max_array_len=limits.items_max,
        max_map_len=limits.items_max,
        **options,
    )


def _no_extension(code: int, data: bytes) -> Any:
    raise NotDecodable("an extension is at a place where none is allowed")


def _classes_of(table: Any, types: TypeTable) -> list[ClassCodec]:
    if type(table) is not list:
        raise NotDecodable("its table of classes is invalid")
    classes = []
    for row in table:
        if type(row) is not list or len(row) < 2 or not all(type(text) is str for text in row):
            raise NotDecodable("its table of classes is invalid")
        name, *shape = row
        entry = types.of_stored(name, tuple(shape))
        if entry is None:
            raise NotDecodable(
                f"it holds a value of class {name[:200]!r}, which is not registered. "
                f"Call job.register_type(C) with that class before the job runs"
            )
        if entry.shape != tuple(shape):
            raise NotDecodable(
                f"class {name[:200]} was stored as {', '.join(shape)[:500]} and is now {', '.join(entry.shape)}"
            )
        classes.append(entry)
    return classes
