"""The plot of the demo can be read: no label covers another, and none is outside the drawing."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from examples.flights.plot import HEIGHT, LABEL_GAP, WIDTH, draw, spread

CARRIERS = {"UA": 12.1, "B6": 13.0, "EV": 20.0, "DL": 12.3, "AA": 12.2, "MQ": 12.15}


class Box(NamedTuple):
    """The place of a text, as wide as a wide font makes it."""

    left: float
    right: float
    base: float
    size: float
    words: str

    def covers(self, other: Box) -> bool:
        beside = self.right <= other.left or other.right <= self.left
        return not beside and abs(self.base - other.base) < max(self.size, other.size)


def texts(path: Path) -> list[Box]:
    boxes = []
    for element in ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text"):
        words, size, x = element.text or "", float(element.attrib["font-size"]), float(element.attrib["x"])
        width = 0.55 * size * len(words)
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[element.attrib["text-anchor"]] * width
        boxes.append(Box(left, left + width, float(element.attrib["y"]), size, words))
    return boxes


def drawn(path: Path) -> list[Box]:
    """The texts of the plot of carriers that end close together, one of which started far from them."""
    flights = range(100, 60_000, 100)
    running = pl.DataFrame(
        [
            {"key": key, "flights": n, "mean": mean + (5_000 / n if key == "B6" else 0.0)}
            for key, mean in CARRIERS.items()
            for n in flights
        ]
    )
    planes = pl.DataFrame({"departed": [10, 100, 500], "mean": [60.0, 12.0, -5.0]})
    draw(running, planes, {key: f"The airline named {key}" for key in CARRIERS}, path)
    return texts(path)


def test_no_text_of_the_plot_covers_another_or_is_cut_off(tmp_path: Path) -> None:
    boxes = drawn(tmp_path / "plot.svg")
    labels = [box for box in boxes if box.words.startswith("The airline")]
    assert len(labels) == len(CARRIERS)
    assert min(below.base - above.base for above, below in pairwise(labels)) >= LABEL_GAP - 0.1
    assert [(a.words, b.words) for a, b in combinations(boxes, 2) if a.covers(b)] == []
    assert [box for box in boxes if box.left < 0 or box.right > WIDTH or not box.size < box.base < HEIGHT] == []


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
def test_heights_are_spread_no_more_than_needed(heights: list[float], placed: list[float]) -> None:
    assert spread(heights, 2.0) == pytest.approx(placed)
    assert all(above - below >= 2.0 - 1e-9 for below, above in pairwise(spread(heights, 2.0)))
