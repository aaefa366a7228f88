"""The table of all metrics in docs/operating.md: ``python -m tests.docs.metrics_table`` writes it from `METRICS`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from malstrom_py.metrics import METRICS
from tests.tree import ROOT

PAGE: Final = ROOT / "docs" / "operating.md"
BEGIN: Final = "<!-- The table is written by: python -m tests.docs.metrics_table -->"
END: Final = "<!-- the end of the table -->"


def table() -> str:
    """Return the table: a row for each metric, as Prometheus has it."""
    lines = ["| metric | labels | meaning |", "|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.exported}` | {labels} | {metric.help} |")
    return "\n".join(lines)


def cut(page: Path = PAGE) -> tuple[str, str, str]:
    """Return what is before the table, the table, and what is after it."""
    before, _, rest = page.read_text().partition(BEGIN)
    found, _, after = rest.partition(END)
    return before, found.strip(), after


def main() -> None:
    """Replace the table of the page."""
    before, _, after = cut()
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}")


if __name__ == "__main__":
    main()
