"""What the demo prints at its end."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from examples.flights.check import TOLERANCE, Account

if TYPE_CHECKING:
    import polars as pl

ROWS = 8


def make_console() -> Console:
    """As wide as the terminal, or wide enough for every table where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    for position, column in enumerate(columns):
        made.add_column(column, justify="right" if position else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made


def print_statistics(console: Console, title: str, statistics: pl.DataFrame, names: dict[str, str]) -> None:
    """The keys with the most flights."""
    columns = ["", "flights", "cancelled", "mean delay", "std", "worst"]
    rows = [
        [
            f"{row['key']} {names.get(row['key'], '')}".strip(),
            f"{row['flights']:,}",
            f"{row['flights'] - row['departed']:,}",
            *("" if row[figure] is None else f"{row[figure]:,.1f}" for figure in ("mean", "std")),
            "" if row["worst"] is None else f"{row['worst']:,}",
        ]
        for row in statistics.sort("flights", descending=True).head(ROWS).iter_rows(named=True)
    ]
    console.print(table(f"{title}, delays in minutes", columns, rows), "")


def print_lateness(console: Console, late: dict[timedelta, int], read: int) -> None:
    """How many flights were late under each bound."""
    for bound, count in late.items():
        hours = bound / timedelta(hours=1)
        console.print(f"Out of order by at most {hours:.0f} h: {count:,} of {read:,} flights late ({count / read:.0%})")
    console.print()


def print_accounts(console: Console, accounts: list[Account]) -> None:
    """Where every flight went, per branch."""
    columns = ["branch", "read", "used", "filtered", "late", "skipped", "dead\nletters", "adds up"]
    rows = [
        [
            account.branch,
            *(f"{n:,}" for n in (account.read, account.used, account.filtered)),
            *(f"{n:,}" for n in (account.late, account.skipped, account.dead_letters)),
            "yes" if account.holds else "[red]NO[/]",
        ]
        for account in accounts
    ]
    console.print(table("Every flight is accounted for", columns, rows), "")


def print_comparison(console: Console, what: str, keys: int, differences: list[str]) -> None:
    """Whether Polars found the same."""
    if differences:
        console.print(f"[red]NOT EQUAL[/] to Polars: {what}: {'; '.join(differences)}")
    else:
        console.print(
            f"[green]EQUAL[/] to Polars in one go: {what}, {keys:,} keys "
            f"(counts and worst exactly, mean and std within {TOLERANCE:g})"
        )


def print_functions(console: Console, called: tuple[float, Any], computed: tuple[float, Any]) -> bool:
    """The rates of a job whose functions are called for each row, or computed on columns; are both equal?"""
    (before, expected), (rate, found) = called, computed
    console.print(
        f"{'[green]EQUAL[/]' if found == expected else '[red]NOT EQUAL[/]'} by plain functions of dicts: {before:,.0f} "
        f"rows/s called row by row, {rate:,.0f} on columns"
    )
    return bool(found == expected)
