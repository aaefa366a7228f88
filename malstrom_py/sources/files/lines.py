r"""Text and JSON lines: decodes frames of lines to rows. UTF-8 only; a line ends with ``\n`` or ``\r\n``.

JSON is decoded line by line with the standard decoder, not by Arrow: each line keeps exactly its own values (no guessed
timestamps, no fields added or dropped), and a bad line does not affect the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from json import JSONDecoder
from typing import Any, Final

from malstrom_py.sources.files.frames import BadRecord, Bytes, Run, text_of

_NO_TEXT: Final = "not valid UTF-8 text"
_decode_json: Final = JSONDecoder().decode


def cut_lines(window: Bytes, ended: bool) -> int:
    """Return the end of the last whole line."""
    return len(window) if ended else window.rfind(b"\n") + 1


def text_runs(frame: Bytes) -> list[Run]:
    """Return each line as a str without its end; a line that is not UTF-8 is a bad record."""
    try:
        return [_lines(frame.decode())]
    except UnicodeDecodeError:
        runs: list[Run] = []
        for line in _byte_lines(frame):
            record = text_of(line)
            if isinstance(record, bytes):
                runs.append(BadRecord(_NO_TEXT, record))
            else:
                _append(runs, line.decode().removesuffix("\r"))
        return runs


def json_runs(frame: Bytes) -> list[Run]:
    """Return each line as the dict of its object; blank lines are left out."""
    try:
        rows = [_decode_json(line) for line in _lines(frame.decode()) if line and not line.isspace()]
    except (ValueError, RecursionError):
        return _json_runs_one_by_one(frame)
    if all(type(row) is dict for row in rows):
        return [rows]
    return _json_runs_one_by_one(frame)


def _json_runs_one_by_one(frame: Bytes) -> list[Run]:
    runs: list[Run] = []
    for line in _byte_lines(frame):
        if not line.strip():
            continue
        row = _json_row(line)
        if isinstance(row, BadRecord):
            runs.append(row)
        else:
            _append(runs, row)
    return runs


def _json_row(line: Bytes) -> dict[str, Any] | BadRecord:
    try:
        row = _decode_json(line.decode())
    except UnicodeDecodeError:
        return BadRecord(_NO_TEXT, text_of(line))
    except (ValueError, RecursionError):
        return BadRecord("not valid JSON (one object per line is expected)", text_of(line))
    if not isinstance(row, dict):
        return BadRecord(f"a JSON {type(row).__name__}, where one object per line is expected", text_of(line))
    return row


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def _byte_lines(frame: Bytes) -> Sequence[Bytes]:
    lines = frame.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _append(runs: list[Run], row: Any) -> None:
    if runs and isinstance(runs[-1], list):
        runs[-1].append(row)
    else:
        runs.append([row])
