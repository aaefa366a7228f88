"""Tables of the command line: drawn for people at a terminal, plain columns for what reads standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence

Row = Sequence[object]


def shown_size(size: int) -> str:
    """A number of bytes for people.

    >>> shown_size(999), shown_size(1_500_000), shown_size(2_500_000_000)
    ('999 B', '1.5 MB', '2.5 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size} B"


def shown_age(age_s: float) -> str:
    """How long ago something was, for people.

    >>> shown_age(5.3), shown_age(200), shown_age(7_200), shown_age(200_000), shown_age(-3)
    ('5 s', '3 min', '2 h', '2 d', '0 s')
    """
    for unit, factor in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= factor:
            return f"{age_s // factor:,.0f} {unit}"
    return f"{max(0.0, age_s):.0f} s"


def table(headings: Sequence[str], rows: Sequence[Row], *, drawn: bool | None = None) -> str:
    """``rows`` below their ``headings``; ``drawn`` with lines around, by default if standard output is a terminal.

    >>> print(table(["step", "keys"], [["total", 12], ["n", 3]], drawn=False))
    step   keys
    total  12
    n      3
    """
    cells = [[str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() if drawn is None else drawn:
        return _drawn(headings, cells)
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in (headings, *cells))
    return "\n".join(lines)


def _drawn(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(*headings)
    for row in rows:
        made.add_row(*map(Text, row))  # as they are: brackets are no markup
    console = Console()
    with console.capture() as captured:
        console.print(made)
    return captured.get().rstrip("\n")
