"""The plot of the demo can be read: no label lies on another, and none is cut off."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from examples.flights.plot import draw_planes, draw_running_means, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CARRIERS = {"UA": 12.1, "B6": 13.0, "EV": 20.0, "DL": 12.3, "AA": 12.2, "MQ": 12.15}


def drawn() -> tuple[Figure, Axes]:
    """The figure of the demo, of carriers that end close together, one of which began far from them."""
    flights = range(100, 60_000, 100)
    running = pl.DataFrame(
        [
            {"key": key, "flights": n, "mean": mean + (5_000 / n if key == "B6" else 0.0)}
            for key, mean in CARRIERS.items()
            for n in flights
        ]
    )
    planes = pl.DataFrame({"departed": [10, 100, 500], "mean": [60.0, 12.0, -5.0]})
    figure = Figure(figsize=(14, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_running_means(left, running, {key: f"The airline {key}" for key in CARRIERS})
    draw_planes(right, planes)
    figure.draw_without_rendering()
    return figure, left


def test_labels_of_the_plot_lie_neither_on_each_other_nor_outside() -> None:
    figure, left = drawn()
    labels = [text for text in left.findobj(Text) if isinstance(text, Text) and text.get_text().startswith("The air")]
    assert len(labels) == len(CARRIERS)
    boxes = [label.get_window_extent() for label in labels]
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]
    titles = [text for text in figure.findobj(Text) if isinstance(text, Text) and "ean departure" in text.get_text()]
    assert len(titles) == 2
    for box in [*boxes, *(title.get_window_extent() for title in titles)]:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1


@pytest.mark.parametrize(
    ("heights", "placed"),
    [
        ([], []),
        ([3.0], [3.0]),
        ([1.0, 5.0], [1.0, 5.0]),
        ([1.0, 1.0], [0.0, 2.0]),
        ([1.0, 1.5, 2.0, 9.0], [-0.5, 1.5, 3.5, 9.0]),
    ],
)
def test_heights_are_spread_no_more_than_it_takes(heights: list[float], placed: list[float]) -> None:
    assert spread(heights, 2.0) == pytest.approx(placed)
    assert all(above - below >= 2.0 - 1e-9 for below, above in pairwise(spread(heights, 2.0)))
