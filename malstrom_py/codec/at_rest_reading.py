"""The stored form of values, as it is read (S8); `malstrom_py.codec.at_rest` writes it.

Rule: what is read is data, never code: classes are found in the job's `TypeTable` only, and nothing that bytes claim is
believed before it is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import msgpack

from malstrom_py.codec.at_rest import CLASSES, EXTENDED, FLAGS, SIZE, SURROGATES, VERSION
from malstrom_py.codec.extensions import MARKS, OBJECT, SET, TUPLE, value_of
from malstrom_py.codec.limits import Limits
from malstrom_py.codec.refusal import Malformed, cannot_decode
from malstrom_py.codec.types import Registered, TypeTable
from malstrom_py.errors import CodecError


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


def decode_each(
    forms: Sequence[bytes], types: TypeTable, limits: Limits, *, step: str = "", keys: Sequence[Any] | None = None
) -> list[Any]:
    """The values whose stored forms are ``forms``. `CodecError` for any that is not one; ``keys`` are for errors.

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
            # One by one, to tell which it is.
            run = [decode_at_rest(forms[at], types, limits, step=step, key=named[at]) for at in places]
        if len(places) == len(forms):
            return run
        for place, value in zip(places, run, strict=True):
            values[place] = value
    return values


def _runs_of(forms: Sequence[bytes]) -> dict[bytes, Sequence[int]]:
    """Where forms stand that begin alike: with one header, and one table of classes."""
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
    """The values of ``forms``, which all begin with ``head``, and each of which ends where its form does."""
    if len(max(forms, key=len)) > limits.bytes_max:
        raise Malformed("one of them is too large")
    flags, reader, start = _opened(memoryview(head), types, limits)
    bodies = [form[start:] for form in forms]
    raw = b"".join(bodies)
    if b"\xdc" in raw or b"\xdd" in raw:  # as in `_unpack`
        runner = msgpack.Unpacker(max_buffer_size=len(raw))
        runner.feed(raw)
        for _ in forms:
            runner.skip()
    unpacker = msgpack.Unpacker(
        strict_map_key=False,
        timestamp=3,
        max_buffer_size=max(1, len(raw)),
        max_array_len=limits.items_max,
        max_map_len=limits.items_max,
        **_hooks(flags, reader),
    )
    unpacker.feed(raw)
    values = []
    for end in accumulate(map(len, bodies)):
        values.append(unpacker.unpack())
        if unpacker.tell() != end:
            raise Malformed("it ends elsewhere than it should")
    if reader.open_marks or any(type(value) is _Mark for value in values):
        raise Malformed("a mark stands where none may stand")
    return values


def _opened(data: memoryview, types: TypeTable, limits: Limits) -> tuple[int, _Reader, int]:
    """What stands before a value: the flags, a reader that knows the classes, and where the value begins."""
    if not data:
        raise Malformed("it is empty")
    flags = data[0] ^ VERSION
    if flags > FLAGS:
        raise Malformed(f"its format {data[0]:#04x} is not one that this version knows")
    if not flags & CLASSES:
        return flags, _Reader([]), 1
    start = 1 + SIZE.size
    end = start + SIZE.unpack_from(data, 1)[0]
    if end > len(data):
        raise Malformed("it ends too soon")
    return flags, _Reader(_classes_of(_unpack(data[start:end], limits), types)), end


def _hooks(flags: int, reader: _Reader) -> dict[str, Any]:
    """What msgpack is to ask while it unpacks a value with ``flags``."""
    return {
        "unicode_errors": "surrogatepass" if flags & SURROGATES else None,
        "list_hook": reader.container if flags & EXTENDED else None,
        "ext_hook": reader.extension if flags & EXTENDED else _no_extension,
    }


def _decode(data: memoryview, types: TypeTable, limits: Limits) -> Any:
    if len(data) > limits.bytes_max:
        raise Malformed(f"it has {len(data):,} bytes, and the limit is {limits.bytes_max:,}")
    flags, reader, start = _opened(data, types, limits)
    body = data[start:]
    if not flags:
        return _unpack(body, limits, ext_hook=_no_extension)
    value = _unpack(body, limits, **_hooks(flags, reader))
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
        entry = types.of_stored(name, tuple(shape))
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
