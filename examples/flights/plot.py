"""The plot of the demo, as SVG: the running mean of the delay of each big carrier, and the mean of each plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import floor, log10
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from examples import svg

CARRIERS: Final = 6
FLIGHTS_MIN: Final = 100
DEPARTURES_MIN: Final = 10
LABEL_GAP: Final = 16.0
"""The distance between the base lines of two labels: a line of text, and some air."""

WIDTH, HEIGHT, TOP, BOTTOM = 1120, 430, 48, 380
LEFT_PANEL: Final = (56.0, 460.0)
RIGHT_PANEL: Final = (740.0, 1100.0)


class Label(NamedTuple):
    """A text beside the end of a line: the end, the height of the text, and the text."""

    end: svg.Point
    height: float
    words: str
    colour: str


class Panel(NamedTuple):
    """One pair of axes: x is logarithmic from ``least`` to ``most``, y goes from ``low`` to ``high``."""

    sides: tuple[float, float]
    least: float
    most: float
    low: float
    high: float

    def at(self, x: float, y: float) -> svg.Point:
        """The place of the point (x, y) in the drawing."""
        left, right = self.sides
        share = log10(x / self.least) / log10(self.most / self.least)
        return left + (right - left) * share, BOTTOM - (BOTTOM - TOP) * (y - self.low) / (self.high - self.low)


def draw(running: pl.DataFrame, planes: pl.DataFrame, names: dict[str, str], path: Path) -> None:
    """Draw the running means of the biggest carriers beside the final means of all planes."""
    pieces = [*running_means(running, names), *means_of_planes(planes)]
    path.write_text(svg.document(WIDTH, HEIGHT, pieces))


def running_means(running: pl.DataFrame, names: dict[str, str]) -> Iterator[str]:
    """One line per carrier: the mean after each of its flights."""
    biggest = running.group_by("key").agg(pl.col("flights").max()).top_k(CARRIERS, by="flights")
    lines = {key: thinned(running.filter(pl.col("key") == key).sort("flights")) for key in biggest["key"]}
    panel = panel_of(LEFT_PANEL, list(lines.values()), "flights", FLIGHTS_MIN)
    yield from axes(panel, "Mean departure delay of a carrier, minutes", "flights of the carrier so far")
    ends = []
    for (key, line), colour in zip(lines.items(), svg.COLOURS, strict=False):
        points = [panel.at(flights, mean) for flights, mean in line.select("flights", "mean").iter_rows()]
        yield svg.path(points, colour=colour)
        ends.append((points[-1], f"{names[key]} {line['mean'][-1]:.1f}", colour))
    for label in labels(ends):
        x = panel.sides[1] + 22
        yield svg.line(label.end, (x - 4, label.height), colour=label.colour, width=0.7)
        yield svg.text(x, label.height + 4, label.words, colour=label.colour)


def labels(ends: Sequence[tuple[svg.Point, str, str]]) -> list[Label]:
    """The labels of lines that end there, from top to bottom, none on another."""
    ends = sorted(ends, key=lambda end: end[0][1])
    heights = spread([end[0][1] for end in ends], LABEL_GAP)
    return [Label(end, height, words, colour) for (end, words, colour), height in zip(ends, heights, strict=True)]


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending ``heights`` as little as possible until each two are ``gap`` apart."""
    clusters: list[list[float]] = []
    for height in heights:
        clusters.append([height])
        while len(clusters) > 1 and _placed(clusters[-1], gap)[0] < _placed(clusters[-2], gap)[-1] + gap:
            last = clusters.pop()
            clusters[-1] += last
    return [height for cluster in clusters for height in _placed(cluster, gap)]


def _placed(cluster: Sequence[float], gap: float) -> list[float]:
    first = sum(cluster) / len(cluster) - gap * (len(cluster) - 1) / 2
    return [first + gap * place for place in range(len(cluster))]


def means_of_planes(planes: pl.DataFrame) -> Iterator[str]:
    """One dot per plane with at least `DEPARTURES_MIN` departures, and the mean of all flights."""
    mean = float(planes.select((pl.col("mean") * pl.col("departed")).sum() / pl.col("departed").sum()).item())
    often = planes.filter(pl.col("departed") >= DEPARTURES_MIN)
    panel = panel_of(RIGHT_PANEL, [often], "departed", DEPARTURES_MIN)
    title = f"Mean departure delay of {often.height:,} planes, minutes"
    yield from axes(panel, title, f"departures of the plane, {DEPARTURES_MIN} at least")
    for departed, delay in often.select("departed", "mean").iter_rows():
        yield svg.dot(panel.at(departed, delay), colour=svg.COLOURS[0])
    colour = svg.COLOURS[4]
    yield svg.line(panel.at(panel.least, mean), panel.at(panel.most, mean), colour=colour, width=1.4)
    yield svg.text(panel.sides[1], TOP + 14, f"— all flights: {mean:.1f} minutes", colour=colour, anchor="end")


def panel_of(sides: tuple[float, float], frames: Sequence[pl.DataFrame], column: str, least: float) -> Panel:
    """Axes that have room for the ``mean`` and the ``column`` of all ``frames``."""
    means = pl.concat([frame["mean"] for frame in frames])
    most = max(float(frame[column].max()) for frame in frames)  # type: ignore[arg-type]
    low, high = float(means.min()), float(means.max())  # type: ignore[arg-type]
    step = _step(high - low)
    return Panel(sides, least, max(most, least * 2), floor(low / step) * step, (floor(high / step) + 1) * step)


def axes(panel: Panel, title: str, below: str) -> Iterator[str]:
    """Title, grid and numbers."""
    left, right = panel.sides
    yield svg.text(left, TOP - 20, title, size=14, bold=True)
    yield from _grid(panel, lambda y: panel.at(panel.least, y)[1])
    number = panel.least
    while number <= panel.most:
        x = panel.at(number, panel.low)[0]
        yield svg.line((x, TOP), (x, BOTTOM))
        yield svg.text(x, BOTTOM + 17, f"{number:,.0f}", colour=svg.MUTED, anchor="middle")
        number *= 10
    yield svg.text((left + right) / 2, BOTTOM + 38, below, colour=svg.MUTED, anchor="middle")


def _grid(panel: Panel, height: Callable[[float], float]) -> Iterator[str]:
    left, right = panel.sides
    step = _step(panel.high - panel.low)
    for number in range(round((panel.high - panel.low) / step) + 1):
        value = panel.low + number * step
        yield svg.line((left, height(value)), (right, height(value)))
        yield svg.text(left - 8, height(value) + 4, f"{value:,.0f}", colour=svg.MUTED, anchor="end")


def _step(span: float) -> float:
    """A round distance between grid lines, of which there are about five."""
    rough = max(span, 1.0) / 5
    unit = 10.0 ** floor(log10(rough))
    return next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)


def thinned(line: pl.DataFrame) -> pl.DataFrame:
    """About 400 points of ``line``, evenly far apart on a logarithmic axis, the last one among them."""
    step = pl.col("flights").log10().mul(120).floor()
    return line.filter((pl.col("flights") >= FLIGHTS_MIN) & (step != step.shift(-1, fill_value=-1.0)))
