"""The codec of one job: the one place that encodes state, values and batches (S8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from malstrom_py.batches import Batch
from malstrom_py.codec import in_flight
from malstrom_py.codec.at_rest import AtRestEncoder
from malstrom_py.codec.at_rest_reading import decode_at_rest, decode_each
from malstrom_py.codec.limits import Limits
from malstrom_py.codec.types import TypeTable
from malstrom_py.errors import CodecError


class Codec:
    """Encodes for storage (*at rest*) and for other workers of the job (*in flight*). One per worker and thread.

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
        """``value`` in its stored form.

        Raises:
            CodecError: it, or a value in it, cannot come back as it is; names ``step``, ``key`` and type.
        """
        return self._at_rest.encode(value, step=step, key=key)

    def decode_at_rest(self, data: bytes | memoryview, *, step: str = "", key: Any = None) -> Any:
        """The value whose stored form is ``data``.

        Raises:
            CodecError: ``data`` is damaged, over a limit, or holds a class that is not registered.
        """
        return decode_at_rest(data, self.types, self.limits, step=step, key=key)

    def encode_rows_at_rest(self, rows: Sequence[Sequence[Any]], *, step: str) -> bytes:
        """Many rows whose first item is a key, in one; the error for one that cannot be stored names its key."""
        try:
            return self.encode_at_rest(rows, step=step)
        except CodecError:
            # Item by item, so that it names the type of the value or state and not that of the row around it.
            for row in rows:
                for item in row:
                    self.encode_at_rest(item, step=step, key=row[0])
            raise

    def encode_each_at_rest(self, values: Sequence[Any], *, step: str, keys: Sequence[Any]) -> list[bytes]:
        """Each of ``values`` in a stored form of its own: what can be read, moved and dropped without the others.

        ``keys``: whose they are, for the error that names the first that cannot be stored.
        """
        return self._at_rest.encode_each(values, step=step, keys=keys)

    def decode_each_at_rest(
        self, forms: Sequence[bytes], *, step: str = "", keys: Sequence[Any] | None = None
    ) -> list[Any]:
        """The values that `encode_each_at_rest` made ``forms`` of. `CodecError` as by `decode_at_rest`."""
        return decode_each(forms, self.types, self.limits, step=step, keys=keys)

    def encode_in_flight(self, value: Any, *, step: str, key: Any = None) -> bytes:
        """Any one value for another worker of this job. `CodecError` if it has no pickle."""
        return in_flight.encode_in_flight(value, step=step, key=key)

    def decode_in_flight(self, data: bytes | memoryview, *, step: str = "", key: Any = None) -> Any:
        """The value that `encode_in_flight` made ``data`` of. `CodecError` if it is damaged."""
        return in_flight.decode_in_flight(data, step=step, key=key)

    def encode_states_in_flight(
        self, keys: Sequence[Any], values: Sequence[Any], times: Mapping[Any, Sequence[int]], *, step: str
    ) -> bytes:
        """The state of many ``keys``, in one: their values, and of some their times; the error for one that cannot be
        sent names its key. By columns, for an object per key would keep the garbage collector busy at both ends.
        """
        try:
            return self.encode_in_flight((keys, values, times), step=step)
        except CodecError:
            for key, value in zip(keys, values, strict=True):
                self.encode_in_flight(key, step=step, key=key)
                self.encode_in_flight(value, step=step, key=key)
            raise

    def encode_batch(self, batch: Batch, *, step: str) -> bytes:
        """``batch`` for another worker of this job. `CodecError` names step, key and type of what cannot be sent."""
        return in_flight.encode_batch(batch, step=step)

    def decode_batch(self, data: bytes | memoryview, *, step: str = "") -> Batch:
        """The batch that `encode_batch` made ``data`` of. `CodecError` if it is damaged."""
        return in_flight.decode_batch(data, step=step)
