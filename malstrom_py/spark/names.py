"""Names of tables and columns, as Spark's SQL has them."""

from __future__ import annotations

import re
from typing import Final

from malstrom_py.errors import PlanError

_QUOTED: Final = re.compile(r"`(?:[^`]|``)*`")


def check_table_name(name: str, what: str) -> None:
    """Raise `PlanError` if ``name`` has a space that is not in back-quotes. ``what`` takes the name.

    >>> check_table_name("shop.`my sales`", "sinks.Spark")
    >>> check_table_name("my sales", "sinks.Spark")
    Traceback (most recent call last):
    malstrom_py.errors.PlanError: sinks.Spark: table 'my sales' has a space: write the part of the name with it in ...
    """
    if re.search(r"\s", _QUOTED.sub("", name)):
        raise PlanError(
            f"{what}: table {name!r} has a space: write the part of the name with it in back-quotes, as in "
            f"shop.`my sales`. Spark's own catalog has no such names; use letters, digits and _ there"
        )


def quoted(name: str) -> str:
    """Return the ``name`` of a column as SQL has it.

    >>> quoted("n"), quoted("a`b")
    ('`n`', '`a``b`')
    """
    return f"`{name.replace('`', '``')}`"
