"""The plot of the demo, as SVG: how the means settle while the flights pass by, and what became of each plane."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0b6e8f", "#d1495b", "#c98a00", "#3c8c5a", "#7b5ea7", "#5f6b7a")
INK, MUTED, GRID = "#1f2933", "#616e7c", "#e4e7eb"
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "grid.color": GRID,
    "svg.hashsalt": "flights",
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
}

FLIGHTS_MIN = 100
DEPARTURES_MIN = 10
LABEL_POINTS = 15
"""How far apart the middles of two labels are: a line of text, and some air."""


def draw(running: pl.DataFrame, planes: pl.DataFrame, names: dict[str, str], path: Path) -> None:
    """Draw the running means of the biggest carriers beside the final means of all planes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(14, 5.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        draw_running_means(left, running, names)
        draw_planes(right, planes)
        figure.savefig(path, metadata={"Date": None})


def draw_running_means(axes: Axes, running: pl.DataFrame, names: dict[str, str]) -> None:
    """One line per carrier: the mean after each of its flights."""
    biggest = running.group_by("key").agg(pl.col("flights").max()).top_k(len(COLOURS), by="flights")
    ends: list[tuple[float, float, str, str]] = []
    for carrier, colour in zip(biggest["key"], COLOURS, strict=False):
        line = thinned(running.filter(pl.col("key") == carrier).sort("flights"))
        axes.plot(line["flights"], line["mean"], color=colour, linewidth=1.8)
        ends.append((line["mean"][-1], line["flights"][-1], f"{names[carrier]} {line['mean'][-1]:.1f}", colour))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_title("The mean departure delay of a carrier, as its flights pass by")
    axes.set_xlabel("flights of the carrier so far")
    axes.set_ylabel("minutes")
    label_ends(axes, sorted(ends))


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write (height, x, text, colour) of each line beside the axes, none on another, with a thin line to its end."""
    from matplotlib.figure import Figure

    low, high = axes.get_ylim()
    axes.set_ylim(low, high)  # so that the labels do not change what a point is in minutes
    if isinstance(axes.figure, Figure):
        axes.figure.draw_without_rendering()  # only then it is known how high the axes are
    points = axes.get_window_extent().height * 72 / axes.figure.dpi
    gap = LABEL_POINTS * (high - low) / points
    beside = axes.get_yaxis_transform()  # x as a fraction of the width, y in minutes
    for (mean, x, text, colour), height in zip(ends, spread([end[0] for end in ends], gap), strict=True):
        axes.annotate(text, (1.04, height), xycoords=beside, color=colour, va="center", annotation_clip=False)
        style = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 2}
        axes.annotate(
            "", (x, mean), (1.035, height), textcoords=beside, arrowprops=style, annotation_clip=False, va="center"
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """``heights``, which go up, moved as little as it takes for any two to be ``gap`` apart."""
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


def draw_planes(axes: Axes, planes: pl.DataFrame) -> None:
    """One dot per plane that has departed often enough for a mean to say something."""
    mean = float(planes.select((pl.col("mean") * pl.col("departed")).sum() / pl.col("departed").sum()).item())
    often = planes.filter(pl.col("departed") >= DEPARTURES_MIN)
    axes.scatter(often["departed"], often["mean"], s=10, color=COLOURS[0], alpha=0.35, linewidths=0)
    axes.axhline(mean, color=COLOURS[1], linewidth=1.2, label=f"all flights: {mean:.1f} minutes")
    axes.legend(frameon=False, loc="upper right")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_title(f"Mean departure delay of {often.height:,} planes")
    axes.set_xlabel(f"departures of the plane, {DEPARTURES_MIN} at least")


def thinned(line: pl.DataFrame) -> pl.DataFrame:
    """About 400 points of ``line``, evenly far apart on a logarithmic axis, the last one among them."""
    step = pl.col("flights").log10().mul(120).floor()
    return line.filter((pl.col("flights") >= FLIGHTS_MIN) & (step != step.shift(-1, fill_value=-1.0)))
