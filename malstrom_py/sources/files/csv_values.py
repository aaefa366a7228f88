r"""Which texts of csv do not read as the type of their column, found in one pass over each column.

Rule: a text that is found is one that Arrow's csv reader refuses. It may refuse others, such as a decimal of
40 digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import ColumnKind, kind_of

if TYPE_CHECKING:
    import pyarrow as pa

_LEAP_YEAR: Final = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAY: Final = (
    r"(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    rf"|(?:0[13578]|1[02])-31)|{_LEAP_YEAR}-02-29)"
)
_HOUR: Final = r"(?:[01][0-9]|2[0-3])"
_CLOCK: Final = r":[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6}0{0,3})?)?"
_ZONE: Final = rf"(?:Z|[+-]{_HOUR}(?::?[0-5][0-9])?)"
_TEXTS: Final = {
    ColumnKind.BOOL: "0|1|true|false|True|False|TRUE|FALSE",
    ColumnKind.DATE: rf"[ \t]*{_DAY}[ \t]*",
    ColumnKind.TIME: rf"[ \t]*{_HOUR}{_CLOCK}[ \t]*",
    ColumnKind.NAIVE: rf"{_DAY}(?:[ T]{_HOUR}(?:{_CLOCK})?)?",
    ColumnKind.ZONED: rf"{_DAY}[ T]{_HOUR}(?:{_CLOCK})?{_ZONE}",
    ColumnKind.NULL: r"[^\x00-\xFF]",
}
"""What every text of these types matches."""


def unreadable(texts: pa.Table, schema: pa.Schema, decimal: str = ".", *, with_text: bool = True) -> dict[int, str]:
    """Return row -> first column of the rows of ``texts``, which are bytes, that do not read as ``schema``.

    ``with_text``: whether to look for text that is not UTF-8.

    >>> import pyarrow as pa
    >>> schema = pa.schema([("n", pa.int64()), ("day", pa.date32())])
    >>> unreadable(pa.table({"n": [b"1", b"x", None], "day": [b"2024-13-01", b"", b"2024-01-31"]}), schema)
    {0: 'day', 1: 'n'}
    """
    import pyarrow as pa
    import pyarrow.compute

    compute: Any = pyarrow.compute  # its functions are created at import, so mypy does not know them
    found: dict[int, str] = {}
    for field in reversed(schema):
        name: str = field.name
        if kind_of(field.type) is ColumnKind.STR:
            found |= dict.fromkeys(_damaged(texts[name]) if with_text else (), name)
            continue
        with suppress(pa.ArrowException):  # a cast costs a tenth of a pattern
            texts[name].cast(pa.string()).cast(field.type)
            continue
        if (pattern := _pattern(field.type, decimal)) is not None:
            fits = compute.match_substring_regex(texts[name], pattern)
            if not compute.all(fits).as_py():
                rows: list[int] = compute.indices_nonzero(compute.invert(fits)).to_pylist()
                found |= dict.fromkeys(rows, name)
    return dict(sorted(found.items()))


def _damaged(texts: pa.ChunkedArray) -> Iterator[int]:
    """Yield the rows that are not UTF-8."""
    for row, text in enumerate(texts.to_pylist()):
        if text is not None and not text.isascii():
            try:
                text.decode()
            except UnicodeDecodeError:
                yield row


def share_of_numbers(texts: pa.ChunkedArray, decimal: str = ".") -> float:
    """Return the share of ``texts`` that read as numbers; None does not count.

    >>> import pyarrow as pa
    >>> share_of_numbers(pa.chunked_array([["1", "2.5", None, "x", "-3"]]))
    0.75
    """
    import pyarrow as pa
    import pyarrow.compute

    compute: Any = pyarrow.compute  # its functions are created at import, so mypy does not know them
    share = compute.mean(compute.match_substring_regex(texts, _pattern(pa.float64(), decimal))).as_py()
    return 0.0 if share is None else float(share)


@cache
def _pattern(kind: pa.DataType, decimal: str) -> str | None:
    """Return what every text of ``kind`` matches; None: not known."""
    match kind_of(kind):
        case ColumnKind.INT if str(kind) == "int64":
            one = rf"-?0*(?:[0-9]{{1,18}}|{_nineteen_digits()})|-0*{1 << 63}|0[xX][0-9a-fA-F]{{1,16}}"
        case ColumnKind.FLOAT:
            one = rf"[+-]?(?:{_number(decimal)}(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity|nan(?:\(.*\))?))"
        case ColumnKind.DECIMAL:
            one = rf"[+-]?(?:{_number(decimal, f'{{0,{kind.scale}}}0*')}|{_number(decimal)}[eE][+-]?[0-9]+)"
        case other:
            texts = _TEXTS.get(other)
            return None if texts is None else rf"(?s)^(?:{texts})$"
    return rf"(?s)^[ \t]*(?:{one})[ \t]*$"


def _number(decimal: str, fraction: str = "*") -> str:
    """Return the pattern of digits with ``fraction`` of them after the point; at least one digit."""
    point = re.escape(decimal)
    return rf"(?:[0-9]+(?:{point}[0-9]{fraction})?|{point}[0-9][0-9]{fraction})"


def _nineteen_digits() -> str:
    """Return the pattern of the numbers of 19 digits below 2^63."""
    most = str((1 << 63) - 1)
    lower = [f"{most[:at]}[0-{int(digit) - 1}][0-9]{{{18 - at}}}" for at, digit in enumerate(most) if digit != "0"]
    return "|".join([*lower, most])
