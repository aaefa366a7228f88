"""The steps of a job as a picture for notebooks: an inline SVG in the colour of the text, which loads nothing.

Rule: every text in it is escaped and cut, because names and details of steps are a user's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from malstrom_py.builder.plan import Step, StreamRef

_WIDTH: Final = 150
_HEIGHT: Final = 40
_GAP_X: Final = 56
_GAP_Y: Final = 16
_MARGIN: Final = 8
_LETTERS_MAX: Final = 20
"""So many letters fit into a box; the whole name is shown under the pointer."""


def to_html(caption: str, steps: Sequence[Step], *, last: StreamRef | None = None) -> str:
    """Return ``caption`` above a picture of ``steps``, inputs before outputs. ``last``: the stream to mark."""
    head = f"<div>{escape(caption)}</div>"
    if not steps:
        return head
    return f'<div>{head}<div style="overflow-x:auto">{_svg(steps, last)}</div></div>'


def _svg(steps: Sequence[Step], last: StreamRef | None) -> str:
    places = _places(steps)
    width = max(column for column, _ in places.values()) * (_WIDTH + _GAP_X) + _WIDTH + 2 * _MARGIN
    height = max(row for _, row in places.values()) * (_HEIGHT + _GAP_Y) + _HEIGHT + 2 * _MARGIN
    edges = [_edge(steps, places, step, ref) for step in steps for ref in step.inputs]
    boxes = [_box(step, places[step.name], is_marked=last is not None and step.name == last.step) for step in steps]
    style = "font:12px sans-serif;fill:none;stroke:currentColor"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" style="{style}">{"".join(edges)}{"".join(boxes)}</svg>'
    )


def _places(steps: Sequence[Step]) -> dict[str, tuple[int, int]]:
    """Return the column and the row of each step: right of its inputs, in the row of its first one if that is free."""
    places: dict[str, tuple[int, int]] = {}
    for step in steps:
        inputs = [places[ref.step] for ref in step.inputs]
        column = max((before for before, _ in inputs), default=-1) + 1
        row, taken = inputs[0][1] if inputs else 0, set(places.values())
        while (column, row) in taken:
            row += 1
        places[step.name] = (column, row)
    return places


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    column, row = place
    return _MARGIN + column * (_WIDTH + _GAP_X), _MARGIN + row * (_HEIGHT + _GAP_Y)


def _edge(steps: Iterable[Step], places: dict[str, tuple[int, int]], step: Step, ref: StreamRef) -> str:
    source = next(one for one in steps if one.name == ref.step)
    (left, top), (right, bottom) = _corner(places[ref.step]), _corner(places[step.name])
    left, top, bottom = left + _WIDTH, top + _HEIGHT // 2, bottom + _HEIGHT // 2
    middle = (left + right) // 2
    # An exchange between workers is dashed.
    dashes = ' stroke-dasharray="4 3"' if source.kind == "key_by" and ref.port == 0 else ""
    line = f'<path d="M{left} {top}C{middle} {top} {middle} {bottom} {right} {bottom}"{dashes}/>'
    port = source.ports[ref.port].name
    return line + ("" if port == "out" else _text(port, middle, (top + bottom) // 2 - 5))


def _box(step: Step, place: tuple[int, int], *, is_marked: bool) -> str:
    left, top = _corner(place)
    round_ = _HEIGHT // 2 if step.kind in ("source", "sink") else 4
    width = 3 if is_marked else 1
    title = escape(f"{step.name}: {step.kind}" + (f", {step.detail}" if step.detail else ""))
    middle = left + _WIDTH // 2
    return (
        f'<g><title>{title}</title><rect x="{left}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" rx="{round_}" '
        f'stroke-width="{width}" pointer-events="all"/>{_text(step.name, middle, top + 17)}'
        f"{_text(step.kind, middle, top + 32, style='font-size:10px;opacity:.7;')}</g>"
    )


def _text(text: str, x: int, y: int, *, style: str = "") -> str:
    shown = text if len(text) <= _LETTERS_MAX else f"{text[: _LETTERS_MAX - 1]}…"
    style = f"{style}fill:currentColor;stroke:none"
    return f'<text x="{x}" y="{y}" text-anchor="middle" style="{style}">{escape(shown)}</text>'
