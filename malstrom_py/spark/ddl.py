"""Schemas as users of Spark write them: a StructType, or text in Spark's DDL, which is read here without Java."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import PlanError
from malstrom_py.errors.text import text_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<comment>--(?:\\\n|[^\r\n])*|/\*(?!\+)(?s:.*?)\*/)|`(?P<quoted>(?:[^`]|``)+)`"""
    r"""|(?P<other>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|\w+|[<>(),:]|\S))"""
)

_STRUCT: Final = re.compile(r"\s*struct\s*<(.*)>\s*", re.IGNORECASE | re.DOTALL)

_SIMPLE: Final = {
    "boolean": "BooleanType",
    **dict.fromkeys(("tinyint", "byte"), "ByteType"),
    **dict.fromkeys(("smallint", "short"), "ShortType"),
    **dict.fromkeys(("int", "integer"), "IntegerType"),
    **dict.fromkeys(("bigint", "long"), "LongType"),
    **dict.fromkeys(("float", "real"), "FloatType"),
    "double": "DoubleType",
    "string": "StringType",
    "binary": "BinaryType",
    "date": "DateType",
    **dict.fromkeys(("timestamp", "timestamp_ltz"), "TimestampType"),
    "timestamp_ntz": "TimestampNTZType",
    "void": "NullType",
}
"""Types without parameters: Spark's names -> classes of PySpark."""

_DECIMALS: Final = ("decimal", "dec", "numeric")
_TEXTS: Final = ("char", "character", "varchar")


def struct_of(schema: Any, what: str) -> StructType:
    """Return ``schema``, a StructType or text in Spark's DDL, as a StructType; `PlanError` names ``what``.

    >>> schema = "count BIGINT, `last seen` STRUCT<at: TIMESTAMP, n: INT> NOT NULL, price decimal(5, 2)"
    >>> struct_of(schema, "output").simpleString()
    'struct<count:bigint,last seen:struct<at:timestamp,n:int>,price:decimal(5,2)>'
    >>> struct_of("struct<id:string,n:bigint>", "output").names
    ['id', 'n']
    """
    from pyspark.sql.types import StructType

    fault = ""
    if isinstance(schema, str):
        try:
            whole = _STRUCT.fullmatch(schema)  # what simpleString() returns
            schema = _Reader(schema if whole is None else whole[1]).columns("")
        except (PlanError, ValueError, TypeError) as error:
            fault = f": {text_of(error)}"
    if not (isinstance(schema, StructType) and 0 < len(set(schema.names)) == len(schema.names)):
        raise PlanError(
            f"{what} must be a StructType or text such as 'id string, n long', each name once: {schema!r}{fault}"
        )
    return schema


class _Reader:
    """Reads a text from left to right. PlanError, ValueError: it is not a schema."""

    def __init__(self, text: str) -> None:
        found = [one for one in _TOKEN.finditer(text) if one["comment"] is None]
        self._left = [(one["quoted"], one["other"]) for one in found][::-1]

    def columns(self, end: str) -> StructType:
        """Take columns, and the ``end`` after them."""
        from pyspark.sql.types import StructType

        found = StructType()
        while True:
            quoted, word = self._take()
            name = word if quoted is None else quoted.replace("``", "`")
            self._skip(":")
            kind = self._kind()
            is_required = self._skip("not", "null")
            if self._skip("comment"):
                self._take()
            found.add(name, kind, nullable=not is_required)
            if self._skip(","):
                continue
            if end:
                self._expect(end)
            elif self._left:
                raise PlanError(f"{self._next()!r} after the column {name!r}")
            return found

    def _kind(self) -> DataType:
        from pyspark.sql import types

        written = self._word()
        match written.lower():
            case name if name in _SIMPLE:
                if name == "string" and self._skip("collate"):
                    self._word()
                found: DataType = getattr(types, _SIMPLE[name])()
            case name if name in _DECIMALS:
                found = types.DecimalType(*self._numbers())
            case name if name in _TEXTS:
                self._numbers()
                found = types.StringType()
            case "array":
                self._expect("<")
                found = types.ArrayType(self._kind())
                self._expect(">")
            case "map":
                self._expect("<")
                key = self._kind()
                self._expect(",")
                found = types.MapType(key, self._kind())
                self._expect(">")
            case "struct":
                self._expect("<")
                found = self.columns(">")
            case "interval":
                of_months = self._word().lower() in ("year", "month")
                found = types.YearMonthIntervalType() if of_months else types.DayTimeIntervalType()
                if self._skip("to"):
                    self._word()
            case _:
                raise PlanError(f"there is no type {written!r}; give a StructType")
        return found

    def _numbers(self) -> list[int]:
        found: list[int] = []
        if self._skip("("):
            while not self._skip(")"):
                found.append(int(self._word()))
                self._skip(",")
        return found

    def _next(self) -> str:
        return (self._left[-1][1] or "").lower() if self._left else ""

    def _skip(self, *words: str) -> bool:
        """Take ``words`` if they come next."""
        if self._next() != words[0]:
            return False
        for word in words:
            self._expect(word)
        return True

    def _expect(self, word: str) -> None:
        if self._next() != word:
            raise PlanError(f"{self._next() or 'the end'!r} where {word!r} is expected")
        self._take()

    def _word(self) -> str:
        return self._take()[1] or ""

    def _take(self) -> tuple[str | None, str]:
        if not self._left:
            raise PlanError("it ends too early")
        return self._left.pop()
