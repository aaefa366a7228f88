"""Why Arrow has no column for values of one kind: what is wrong with the value, in words."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

_INT_MIN: Final = -(1 << 63)
_INT_END: Final = 1 << 63
_DIGITS_MAX: Final = 76


def why_unfit(values: Iterable[Any]) -> str | None:
    r"""Return the first of ``values``, also inside lists and dicts, that no column can hold: what it is, and a remedy.

    None if there is none.

    >>> why_unfit([1, {"n": [1 << 63]}])
    'an int beyond 64 bits: make it a Decimal, a float or text'
    >>> why_unfit([Decimal("1.5"), Decimal("NaN")])
    'a Decimal that is NaN or infinite: make it None or a float'
    >>> why_unfit(["\ud800"])
    'text that is not valid Unicode, with a lone surrogate: repair it'
    >>> why_unfit([1, "a"])
    """
    return next(filter(None, map(_why, values)), None)


def _why(value: Any) -> str | None:
    match value:
        case bool():
            return None
        case int() if not _INT_MIN <= value < _INT_END:
            return "an int beyond 64 bits: make it a Decimal, a float or text"
        case Decimal() if not value.is_finite():
            return "a Decimal that is NaN or infinite: make it None or a float"
        case Decimal() if len(value.as_tuple().digits) > _DIGITS_MAX:
            return f"a Decimal of more than {_DIGITS_MAX} digits: round it, or make it text"
        case str() if not is_unicode(value):
            return "text that is not valid Unicode, with a lone surrogate: repair it"
        case dict():
            return why_unfit([*value, *value.values()])
        case list() | tuple():
            return why_unfit(value)
    return None


def is_unicode(text: str) -> bool:
    r"""Return whether ``text`` can be encoded: it has no lone surrogates, which Arrow and file names refuse.

    >>> is_unicode("é"), is_unicode("\ud800")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
