"""Reads orders from JSON lines, some of them broken, and keeps the broken ones for a person to look at.

python -m examples.dead_letters          or          malstrom run examples.dead_letters
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources

ORDERS = Path(__file__).parent / "input" / "orders.jsonl"


def total(order: dict[str, Any]) -> dict[str, Any]:
    """Return an order with its total; KeyError or TypeError if it is incomplete."""
    return {"order": order["order"], "item": order["item"], "total": order["pieces"] * (order["price"] + 0.0)}


def job(orders: str = str(ORDERS), out: str = "demo-out/dead_letters") -> mp.Job:
    """Good orders -> ``out``/orders, lines that are no JSON and orders without a total -> ``out``/broken."""
    job = mp.Job("orders")
    lines = job.source("lines", sources.Files(orders), on_error="dead-letter")
    lines.map("total", total, on_error="dead-letter").sink("orders", sinks.Files(f"{out}/orders", format="csv"))
    for step in ("lines", "total"):
        job.dead_letters(step).sink(f"{step}-broken", sinks.Files(f"{out}/broken", format="json"))
    return job


if __name__ == "__main__":
    print(mp.run(job()))
