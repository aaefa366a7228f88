"""The stored form of values: one byte of version and flags, the classes in use, then msgpack (rule S8).

Rule: a value comes back as exactly the type it went in, or is refused when it is written. What is read is data, never
code: classes are found in the job's `TypeTable` only, and nothing that bytes claim is believed before it is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from gc import get_referents
from typing import Any, Final

import msgpack

from malstrom_py.codec.extensions import FROZENSET, MARKS, OBJECT, SET, TUPLE, extension_of, value_of
from malstrom_py.codec.limits import Limits
from malstrom_py.codec.refusal import Malformed, Refused, cannot_decode, cannot_encode, refusal_of
from malstrom_py.codec.sweep import PLAIN, sweep, too_deep, too_many
from malstrom_py.codec.types import Registered, TypeTable
from malstrom_py.errors import CodecError

_VERSION: Final = 0x10
_EXTENDED: Final = 0x01  # holds extensions
_SURROGATES: Final = 0x02  # a str holds what is no Unicode character
_CLASSES: Final = 0x04  # a table of classes stands before the value
_FLAGS: Final = _EXTENDED | _SURROGATES | _CLASSES

_HEADERS: Final = [bytes((_VERSION | flags,)) for flags in range(_FLAGS + 1)]

_SIZE: Final = struct.Struct("<I")
_BUFFER_BYTES: Final = 1 << 16
_KEEP_BYTES_MAX: Final = 1 << 20  # msgpack's buffer never shrinks: after a larger value the packer is made anew

_MARKS: Final = {code: msgpack.ExtType(code, b"") for code in sorted(MARKS)}


class AtRestEncoder:
    """Writes values. Not for several threads at once.

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
                self._flags |= _SURROGATES
        except ValueError as error:  # of msgpack: its recursion limit, or a container beyond 32 bits
            raise _over_limit(kind, error) from error
        except RecursionError as error:
            raise too_deep(kind) from error
        if self._count > self._limits.items_max:
            raise too_many(kind, self._limits.items_max)
        if len(packed) > _KEEP_BYTES_MAX:
            self._packer = self._new_packer(None)
        if self._classes:
            table: bytes = self._packer.pack([[entry.name, *entry.shape] for _, entry in self._classes.values()])
            return _HEADERS[self._flags | _CLASSES] + _SIZE.pack(len(table)) + table + packed
        return _HEADERS[self._flags] + packed

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
        self._flags |= _EXTENDED
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


class _Mark:
    """Stands first in a list that is to become something else. Never leaves the decoder."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


_MARK_OBJECTS: Final = {code: _Mark(code) for code in MARKS}


class _Reader:
    """The hooks of one decoding: msgpack builds lists and asks, bottom-up, what they are to become."""

    def __init__(self, classes: list[Registered]) -> None:
        self._classes = classes
        self.open_marks = 0

    def extension(self, code: int, data: bytes) -> Any:
        mark = _MARK_OBJECTS.get(code)
        if mark is None:
            return value_of(code, data)
        if data:
            raise Malformed("a mark has contents")
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
            raise Malformed("an object is of no known class")
        return self._classes[items[1]].put_together(items[2:])


def decode_at_rest(
    data: bytes | memoryview, types: TypeTable, limits: Limits, *, step: str = "", key: Any = None
) -> Any:
    """The value whose stored form is ``data``. `CodecError` for anything that is not one."""
    try:
        return _decode(memoryview(data), types, limits)
    except (CodecError, MemoryError):
        raise
    except Malformed as error:
        raise cannot_decode(str(error), step=step, key=key) from error
    except Exception as error:
        # Whatever msgpack, a constructor or a hash makes of bytes that nobody wrote. Its text may hold values.
        raise cannot_decode(f"it is damaged ({type(error).__name__})", step=step, key=key) from error


def _decode(data: memoryview, types: TypeTable, limits: Limits) -> Any:
    if not data:
        raise Malformed("it is empty")
    if len(data) > limits.bytes_max:
        raise Malformed(f"it has {len(data):,} bytes, and the limit is {limits.bytes_max:,}")
    flags = data[0] ^ _VERSION
    if flags > _FLAGS:
        raise Malformed(f"its format {data[0]:#04x} is not one that this version knows")
    body = data[1:]
    if not flags:
        return _unpack(body, limits, ext_hook=_no_extension)
    classes: list[Registered] = []
    if flags & _CLASSES:
        end = _SIZE.size + _SIZE.unpack_from(body)[0]
        if end > len(body):
            raise Malformed("it ends too soon")
        classes = _classes_of(_unpack(body[_SIZE.size : end], limits), types)
        body = body[end:]
    reader = _Reader(classes)
    value = _unpack(
        body,
        limits,
        unicode_errors="surrogatepass" if flags & _SURROGATES else None,
        list_hook=reader.container if flags & _EXTENDED else None,
        ext_hook=reader.extension if flags & _EXTENDED else _no_extension,
    )
    if reader.open_marks or type(value) is _Mark:
        raise Malformed("a mark stands where none may stand")
    return value


def _unpack(data: memoryview, limits: Limits, **options: Any) -> Any:
    raw = bytes(data)
    # An array of 16 or 32 bits of length makes msgpack allocate for all it claims, and claims can be nested. So it
    # first runs over them without building anything, which ends where the bytes end.
    if b"\xdc" in raw or b"\xdd" in raw:
        runner = msgpack.Unpacker(max_buffer_size=len(raw))
        runner.feed(raw)
        runner.skip()
    return msgpack.unpackb(
        raw,
        strict_map_key=False,
        timestamp=3,  # msgpack's own extension, which is never written, would come back as a class of msgpack
        max_array_len=limits.items_max,
        max_map_len=limits.items_max,
        **options,
    )


def _no_extension(code: int, data: bytes) -> Any:
    raise Malformed("an extension stands where none may stand")


def _classes_of(table: Any, types: TypeTable) -> list[Registered]:
    if type(table) is not list:
        raise Malformed("its table of classes is none")
    classes = []
    for row in table:
        if type(row) is not list or len(row) < 2 or not all(type(text) is str for text in row):
            raise Malformed("its table of classes is none")
        name, *shape = row
        entry = types.of_name(name)
        if entry is None:
            raise Malformed(
                f"it holds a value of class {name[:200]!r}, which is not registered. "
                f"Call job.register_type(C) with that class before the job runs"
            )
        if entry.shape != tuple(shape):
            raise Malformed(
                f"class {name[:200]} was stored as {', '.join(shape)[:500]} and is now {', '.join(entry.shape)}"
            )
        classes.append(entry)
    return classes
