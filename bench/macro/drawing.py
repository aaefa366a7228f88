"""Time lines as SVG, by hand: one panel under the other over one axis of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

WIDTH: Final = 960
HEIGHT: Final = 190
LEFT: Final = 80
TOP: Final = 34


@dataclass(frozen=True, slots=True)
class Panel:
    """``lines``: label -> (seconds, value), with a colour each. The axis goes from 0 to the largest value."""

    title: str
    lines: dict[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Span:
    """A time that is shaded."""

    label: str
    since_s: float
    until_s: float


COLOURS: Final = ("#1f6fb4", "#d1495b", "#2e8b57", "#8a5fbf")


def write_svg(path: Path, title: str, panels: Sequence[Panel], spans: Sequence[Span] = ()) -> None:
    """Draw ``panels`` into ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    end_s = max([1e-9, *(at for panel in panels for line in panel.lines.values() for at, _ in line)])
    height = TOP + HEIGHT * len(panels)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/><text x="{LEFT}" y="16">{escape(title)}</text>'
    )
    drawn = [head]
    for number, panel in enumerate(panels):
        drawn += _panel(panel, TOP + HEIGHT * number, end_s, spans)
    path.write_text("\n".join([*drawn, "</svg>"]))


def _panel(panel: Panel, top: int, end_s: float, spans: Sequence[Span]) -> list[str]:
    height, width = HEIGHT - 50, WIDTH - LEFT - 20
    most = max([1e-9, *(value for line in panel.lines.values() for _, value in line)])
    bottom = top + 16 + height

    def x(at_s: float) -> float:
        return LEFT + width * at_s / end_s

    drawn = [f'<text x="{LEFT}" y="{top + 10}" fill="#444">{escape(panel.title)}</text>']
    for span in spans:
        wide = max(1.0, x(span.until_s) - x(span.since_s))
        drawn.append(
            f'<rect x="{x(span.since_s):.1f}" y="{top + 16}" width="{wide:.1f}" height="{height}" fill="#f0dfb8"/>'
            f'<text x="{x(span.since_s) + 3:.1f}" y="{top + 28}" fill="#865">{escape(span.label)}</text>'
        )
    for part in (0.0, 0.5, 1.0):
        y = bottom - height * part
        drawn.append(
            f'<line x1="{LEFT}" x2="{LEFT + width}" y1="{y}" y2="{y}" stroke="#ccc"/>'
            f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{most * part:,.4g}</text>'
        )
    for (label, line), colour in zip(panel.lines.items(), COLOURS, strict=False):
        points = " ".join(f"{x(at):.1f},{bottom - height * value / most:.1f}" for at, value in line)
        drawn.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}"><title>{escape(label)}</title></polyline>'
        )
    seconds = [end_s * part / 10 for part in range(11)]
    drawn += [f'<text x="{x(at):.1f}" y="{bottom + 14}" fill="#444">{at:.1f}</text>' for at in seconds]
    drawn.append(f'<text x="{LEFT + width}" y="{bottom + 27}" text-anchor="end" fill="#444">seconds</text>')
    return drawn
