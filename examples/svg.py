"""Pieces of a drawing as SVG. All plots of this repository are made of these and need no plotting library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

INK: Final = "#1f2933"
MUTED: Final = "#616e7c"
GRID: Final = "#d8dde3"
DARK: Final = {INK: "#e6edf3", MUTED: "#9aa7b4", GRID: "#3a434d", "white": "#0d1117"}
"""Each colour of paper and ink -> the one for readers who prefer dark pages."""

COLOURS: Final = ("#1f6fb4", "#e08a1e", "#2e8b57", "#8a5fbf", "#d1495b", "#5f6b7a")

Point = tuple[float, float]


def document(width: float, height: float, pieces: Iterable[str]) -> str:
    """A whole drawing, with a white background or, for readers who prefer it, a dark one."""
    others = [f'[fill="{light}"]{{fill:{dark}}}[stroke="{light}"]{{stroke:{dark}}}' for light, dark in DARK.items()]
    style = f"<style>@media (prefers-color-scheme: dark) {{{''.join(others)}}}</style>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">'
    return "\n".join([head, style, '<rect width="100%" height="100%" fill="white"/>', *pieces, "</svg>\n"])


def text(
    x: float, y: float, words: str, *, size: float = 12, colour: str = INK, anchor: str = "start", bold: bool = False
) -> str:
    """``words`` on the base line ``y``; ``anchor``: whether they start, end or have their middle at ``x``."""
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}"'
    return f"<text {place}{weight}>{escape(words)}</text>"


def line(since: Point, until: Point, *, colour: str = GRID, width: float = 1) -> str:
    """A straight line."""
    ends = f'x1="{since[0]:.1f}" y1="{since[1]:.1f}" x2="{until[0]:.1f}" y2="{until[1]:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'


def rectangle(corner: Point, width: float, height: float, *, colour: str) -> str:
    """A filled rectangle; ``corner`` is its upper left one."""
    return f'<rect x="{corner[0]:.1f}" y="{corner[1]:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def path(points: Sequence[Point], *, colour: str, width: float = 1.8) -> str:
    """A line through ``points``."""
    return f'<polyline points="{_listed(points)}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def area(points: Sequence[Point], *, colour: str) -> str:
    """The area that ``points`` enclose, a little transparent."""
    return f'<polygon points="{_listed(points)}" fill="{colour}" fill-opacity="0.75"/>'


def dot(middle: Point, *, colour: str, radius: float = 2, opacity: float = 0.35) -> str:
    """A small circle."""
    place = f'cx="{middle[0]:.1f}" cy="{middle[1]:.1f}" r="{radius:g}"'
    return f'<circle {place} fill="{colour}" fill-opacity="{opacity:g}"/>'


def _listed(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
