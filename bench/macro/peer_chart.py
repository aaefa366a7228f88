"""The chart of `bench.macro.peers`: rows per second of each system, one line of dots per query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, floor, log10
from statistics import median
from typing import Any, Final

from examples import svg

SYSTEMS: Final = {
    "bytewax": ("bytewax", svg.COLOURS[1]),
    "loop": ("a plain Python loop", svg.COLOURS[5]),
    "rows": ("malstrom-py, rows", svg.COLOURS[0]),
    "columns": ("malstrom-py, columns", svg.COLOURS[2]),
    "batch": ("Polars or DuckDB, whole table, the faster", svg.COLOURS[3]),
}
WIDTH, LEFT, RIGHT, TOP, LINE = 900, 250, 780, 104, 34


def rates_of(n: int, seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Million rows per second of each system that was measured."""
    rates = {system: n / median(of) / 1e6 for system, of in seconds.items()}
    rates["batch"] = max(rates.pop(engine) for engine in ("polars", "duckdb") if engine in rates)
    return {system: rates[system] for system in SYSTEMS if system in rates}


def draw(report: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The drawing of what `bench.macro.peers` has written."""
    rates = {name: rates_of(report["rows"], seconds) for name, seconds in report["seconds"].items()}
    every = [rate for of in rates.values() for rate in of.values()]
    low, high = floor(log10(min(every)) * 2) / 2, ceil(log10(max(every)) * 2) / 2

    def x(rate: float) -> float:
        return LEFT + (RIGHT - LEFT) * (log10(rate) - low) / (high - low)

    bottom = TOP + LINE * len(rates)
    pieces = [
        svg.text(
            16, 24, "Million rows per second of processor time, one thread each (logarithmic)", size=16, bold=True
        ),
        *(
            svg.text(16, bottom + 40 + 15 * number, words, size=10, colour=svg.MUTED)
            for number, words in _wrapped(report)
        ),
        *_legend(),
        *_axis(x, range(ceil(low), floor(high) + 1), bottom),
    ]
    for number, (name, of) in enumerate(rates.items()):
        y = TOP + LINE * (number + 0.5)
        pieces.append(svg.text(16, y + 4, name, bold=True))
        pieces.append(svg.text(46, y + 4, titles[name], size=11, colour=svg.MUTED))
        pieces.append(svg.line((x(min(of.values())), y), (x(max(of.values())), y), width=3))
        pieces += [svg.dot((x(rate), y), colour=SYSTEMS[system][1], radius=6, opacity=1) for system, rate in of.items()]
        if "bytewax" in of:
            pieces.append(svg.text(RIGHT + 16, y + 4, f"{of['rows'] / of['bytewax']:.1f} times bytewax", size=11))
    return svg.document(WIDTH, bottom + 76, pieces)


def _wrapped(report: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    yield from enumerate(report["described"].splitlines())


def _legend() -> Iterator[str]:
    x = 22.0
    for place, (words, colour) in enumerate(SYSTEMS.values()):
        if place == 3:
            x = 22.0
        y = 48 + 20 * (place // 3)
        yield svg.dot((x, y), colour=colour, radius=6, opacity=1)
        yield svg.text(x + 12, y + 4, words)
        x += 40 + 7 * len(words)


def _axis(x: Any, powers: range, bottom: float) -> Iterator[str]:
    for power in powers:
        for factor in (1, 2, 5):
            rate = factor * 10.0**power
            if LEFT <= x(rate) <= RIGHT:
                yield svg.line((x(rate), TOP), (x(rate), bottom))
                yield svg.text(x(rate), bottom + 16, f"{rate:g}", anchor="middle", size=11, colour=svg.MUTED)
