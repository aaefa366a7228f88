"""JSON objects and dicts as columns, where columns hold the same values; of JSON, without a dict for each.

Rule: what a decoder of dicts would give, or refuse, is the measure. Each field has one type in all records so far, and
the decoder enforces it: an integer is not a float, and null is neither. Batches in which it is otherwise are decoded as
dicts, and so are all once that has happened often.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat
from operator import attrgetter, itemgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES: Final = 8
_COST: Final = 4
"""As many tries does a batch cost that no columns hold: it is decoded three times. The others give one back."""

_LEARNT_FROM: Final = 64
_TYPES: Final = frozenset({int, float, bool, str})


def _array(values: list[Any], kind: type) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}[kind])


def _record_batch(arrays: list[pa.Array], names: list[str]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(arrays, names=names)


class DictColumns:
    """Makes columns of the fields ``names`` of dicts. A field has one type in all batches, and is never missing.

    >>> columns = DictColumns(["price", "at"])
    >>> columns.convert([{"at": "one", "price": 2, "x": []}, {"price": None, "at": "two"}]).to_pydict()
    {'price': [2, None], 'at': ['one', 'two']}
    >>> columns.convert([{"at": "one", "price": 2.0}])  # a float among integers
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = list(names)
        self._picks = [itemgetter(name) for name in self._names]
        self._types: dict[str, type] = {}

    def convert(self, rows: list[Any]) -> pa.RecordBatch | None:
        """Return the fields as columns; None if no columns hold them."""
        if set(map(type, rows)) != {dict}:  # another class may look its items up otherwise
            return None
        try:
            return _record_batch(list(map(self._column, self._names, self._picks, repeat(rows))), self._names)
        except Exception:
            """Missing, of another type than before, beyond 64 bits, or half a character."""
            return None

    def _column(self, name: str, pick: Any, rows: list[Any]) -> pa.Array:
        values = list(map(pick, rows))
        (kind,) = set(map(type, values)) - {NoneType}
        if self._types.setdefault(name, kind) is not kind:
            raise TypeError
        return _array(values, kind)


class JsonColumns:
    """Decodes objects, of which the fields ``names`` become columns.

    >>> columns = JsonColumns(["price", "at"])
    >>> columns.decode([b'{"at": "one", "price": 2, "x": []}', b'{"price": null, "at": "two", "x": 1}']).to_pydict()
    {'price': [2, None], 'at': ['one', 'two']}
    >>> columns.decode([b'{"price": 2.0, "at": "one", "x": 0}'])  # a float among integers
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = list(names)
        self._fields: frozenset[str] | None = None
        self._types: dict[str, set[type]] = {name: set() for name in self._names}
        self._decode: Any = None
        self._pick: list[Any] = []
        self._tries = _TRIES

    def decode(self, texts: Sequence[Any]) -> pa.RecordBatch | None:
        """Return fields of the objects as columns; None if all must be decoded as dicts, or one is malformed."""
        if self._tries < 0 or not texts:
            return None
        if not self._fields and not self._learn(texts[:_LEARNT_FROM]):
            self._tries -= 1
            return None
        for _ in range(2):
            try:
                made = self._columns(list(map(self._decode, texts)))
            except Exception:
                """Of another type or with other fields than those so far, beyond 64 bits, or malformed."""
            else:
                self._tries = min(self._tries + 1, _TRIES)
                return made
            if not self._learn(texts):
                break
        self._tries -= _COST
        return None

    def _columns(self, objects: list[Any]) -> pa.RecordBatch:
        arrays = []
        for name, pick in zip(self._names, self._pick, strict=True):
            values = list(map(pick, objects))
            (kind,) = self._types[name] - {NoneType}
            if kind is float and not set(map(type, values)) <= {float, NoneType}:  # a decoder makes floats of integers
                raise TypeError
            arrays.append(_array(values, kind))
        return _record_batch(arrays, self._names)

    def _learn(self, texts: Sequence[Any]) -> bool:
        """Learn the types of fields; False if nothing is new, or no type holds them."""
        import msgspec

        try:
            rows = list(map(msgspec.json.Decoder().decode, texts))
            if set(map(type, rows)) != {dict} or len(found := set(map(frozenset, rows))) > 1:
                return False
        except Exception:
            return False
        (fields,) = found
        types = {name: self._types[name] | {type(row.get(name)) for row in rows} for name in self._names}
        if self._fields not in (None, fields) or not fields >= self._types.keys() or types == self._types:
            return False
        if any(len(seen - {NoneType}) != 1 or not seen - {NoneType} <= _TYPES for seen in types.values()):
            return False
        if any(one in '"\\' or one < " " for name in fields for one in name):  # no such name can be given to a decoder
            return False
        self._fields, self._types = fields, types
        names = sorted(fields)
        struct = msgspec.defstruct(
            "Object",
            [(f"f{number}", self._type_of(name)) for number, name in enumerate(names)],
            rename={f"f{number}": name for number, name in enumerate(names)},
            forbid_unknown_fields=True,
            gc=False,
        )
        self._decode = msgspec.json.Decoder(struct).decode
        self._pick = [attrgetter(f"f{names.index(name)}") for name in self._names]
        return True

    def _type_of(self, name: str) -> Any:
        """Return the type that the decoder enforces; of fields that are not read any."""
        seen = self._types.get(name)
        if seen is None:
            return Any
        (kind,) = seen - {NoneType}
        made: Any = int | float if kind is float else kind
        return made | None if NoneType in seen else made
