"""The codec of one job: the only place that encodes state, values and batches (S8).

`without_classes` returns a codec for tools that show the state of a job without its classes. It decodes an object to
its stored field names and values, imports nothing, and cannot encode the object again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from malstrom_py.codec import in_flight
from malstrom_py.codec.at_rest import AtRestEncoder, decode_at_rest, decode_each
from malstrom_py.codec.encoding_errors import Limits, NotDecodable, NotEncodable
from malstrom_py.codec.types import ClassCodec, Shape, TypeTable
from malstrom_py.errors import CodecError


class Codec:
    """Encoder for storage (*at rest*) and for other workers of the job (*in flight*). One per worker and thread.

    >>> codec = Codec()
    >>> codec.decode_at_rest(codec.encode_at_rest({1: (2.5, "x")}, step="best"))
    {1: (2.5, 'x')}
    >>> codec.encode_at_rest({"f": len}, step="best", key="UA")
    Traceback (most recent call last):
        ...
    malstrom_py.errors.CodecError: step 'best' for key 'UA': a value of type builtin_function_or_method cannot be ...
    """

    def __init__(self, types: TypeTable | None = None, *, limits: Limits | None = None) -> None:
        self.types = TypeTable() if types is None else types
        self.limits = limits or Limits()
        self._at_rest = AtRestEncoder(self.types, self.limits)

    def encode_at_rest(self, value: Any, *, step: str, key: Any = None) -> bytes:
        """Return ``value`` in its stored form.

        Raises:
            CodecError: decoding could not restore ``value`` exactly; names ``step``, ``key`` and type.
        """
        return self._at_rest.encode(value, step=step, key=key)

    def decode_at_rest(self, data: bytes | memoryview, *, step: str = "", key: Any = None) -> Any:
        """Return the value whose stored form is ``data``.

        Raises:
            CodecError: ``data`` is damaged, over a limit, or holds a class that is not registered.
        """
        return decode_at_rest(data, self.types, self.limits, step=step, key=key)

    def encode_rows_at_rest(self, rows: Sequence[Sequence[Any]], *, step: str) -> bytes:
        """Encode rows whose first item is a key as one value; an error names the key of the row."""
        try:
            return self.encode_at_rest(rows, step=step)
        except CodecError:
            # Encode item by item, so that the error names the type of the value, not of the row.
            for row in rows:
                for item in row:
                    self.encode_at_rest(item, step=step, key=row[0])
            raise

    def encode_each_at_rest(self, values: Sequence[Any], *, step: str, keys: Sequence[Any]) -> list[bytes]:
        """Return the stored form of each of ``values``, so that each can be read, moved and dropped alone.

        ``keys``: the keys of the values, for the error that names the first that cannot be stored.
        """
        return self._at_rest.encode_each(values, step=step, keys=keys)

    def decode_each_at_rest(
        self, forms: Sequence[bytes], *, step: str = "", keys: Sequence[Any] | None = None
    ) -> list[Any]:
        """Decode the result of `encode_each_at_rest`. `CodecError` as by `decode_at_rest`."""
        return decode_each(forms, self.types, self.limits, step=step, keys=keys)

    def encode_in_flight(self, value: Any, *, step: str, key: Any = None) -> bytes:
        """Encode one value for another worker of this job. `CodecError` if it cannot be pickled."""
        return in_flight.encode_in_flight(value, step=step, key=key)

    def decode_in_flight(self, data: bytes | memoryview, *, step: str = "", key: Any = None) -> Any:
        """Decode the result of `encode_in_flight`. `CodecError` if ``data`` is damaged."""
        return in_flight.decode_in_flight(data, step=step, key=key)

    def encode_states_in_flight(
        self, keys: Sequence[Any], values: Sequence[Any], times: Mapping[Any, Sequence[Any]], *, step: str
    ) -> bytes:
        """Encode the state of many ``keys``: their values, and the ``times`` of some. An error names the
        key. The columns are sent as lists, because an object per key would load the garbage collector at both ends.
        """
        try:
            return self.encode_in_flight((keys, values, times), step=step)
        except CodecError:
            for key, value in zip(keys, values, strict=True):
                self.encode_in_flight(key, step=step, key=key)
                self.encode_in_flight(value, step=step, key=key)
            raise

    encode_batch = staticmethod(in_flight.encode_batch)
    decode_batch = staticmethod(in_flight.decode_batch)


class StoredObject(dict[str, Any]):
    """The fields of a stored dataclass or named tuple. Hashable, because it may be a key; do not change it."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


class AnyClass(TypeTable):
    """A type table that decodes every class by its stored description.

    Dataclasses and named tuples become dicts of their fields, members of an Enum their names, flags their bits.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Stats:
    ...     count: int
    ...     total: float
    >>> types = TypeTable()
    >>> stored = Codec(types).encode_at_rest(types.register(Stats)(2, 7.5), step="stats")
    >>> without_classes().decode_at_rest(stored)
    {'count': 2, 'total': 7.5}
    """

    def of_stored(self, name: str, shape: Shape) -> ClassCodec | None:
        """Return an encoding that decodes any class by its stored shape."""
        return _UnknownClass(name, shape)


class _UnknownClass:
    """The encoding of a class of which only the stored name and shape are known."""

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape
        self._kind, *self._fields = shape or ("",)

    def take_apart(self, value: Any) -> Iterable[Any]:
        raise NotEncodable(type(value), "its class is unknown here")

    def put_together(self, parts: Sequence[Any]) -> Any:
        if self._kind in ("dataclass", "struct", "namedtuple"):
            return StoredObject(zip(self._fields, parts, strict=True))
        if self._kind in ("enum", "flag") and len(parts) == 1 and type(parts[0]) in (str, int):
            return parts[0]
        raise NotDecodable(f"class {self.name[:200]} is of a kind that this version does not know")


def without_classes() -> Codec:
    """Return a codec that reads the stored values of any job without its classes."""
    return Codec(AnyClass())
