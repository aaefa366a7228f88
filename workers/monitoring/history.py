"""The pages of jobs in a folder, from which the dashboard shows them when they have ended.

Two files for each start of a job: its events, one JSON object per line, and its latest view, which is replaced.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from os import SEEK_END
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from malstrom_py.errors import PlanError
from malstrom_py.metrics import ENDED
from malstrom_py.validation import NAME_MAX

_EVERY_S: Final = 5.0
_EVENTS: Final = ".events.jsonl"
_VIEW: Final = ".view.json"
_NAME: Final = re.compile(rf"([A-Za-z0-9_-]{{1,{NAME_MAX}}})-[0-9]{{8}}T[0-9]{{6}}-[0-9a-f]{{4}}")
_VIEWS_MAX: Final = 256
_VIEW_BYTES_MAX: Final = 1 << 24
_EVENT_BYTES_MAX: Final = 1 << 22

FILE_BYTES_MAX: Final = 1 << 24
"""The size of the events of a job, of which the earlier half is then dropped."""

EVENTS_MAX: Final = 2_000
"""The number of events that a page shows: the last ones."""


class _View(msgspec.Struct):
    """What the list of pages reads of a view. Another one is damaged."""

    state: str | None = None
    workers: list[Any] = []
    error: str | None = None
    at: float = 0.0
    duration_s: float = 0.0
    rates: list[list[Any]] = []


class Recording:
    """Keeps the page of a job that starts now, in ``folder``, which is made. `PlanError` if that is not possible.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     recording = Recording(Path(folder), "docs")
    ...     recording.view({"job": "docs", "state": "finished"}, [], last=True)
    ...     [page.view["state"] for page in pages_in(Path(folder))]
    ['finished']
    """

    def __init__(self, folder: Path, job: str) -> None:
        self.name = f"{job}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
        self._view = folder / (self.name + _VIEW)
        self._events = folder / (self.name + _EVENTS)
        self._next_s = 0.0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._events.touch(mode=0o600)
        except OSError as error:
            raise PlanError(f"the history of the dashboard cannot be kept in {folder}: {error.strerror}") from error

    def events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Append ``events``."""
        with self._events.open("a") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)
            is_full = file.tell() > FILE_BYTES_MAX
        if is_full:
            self._drop_half()

    def _drop_half(self) -> None:
        """Keep the later half of the events."""
        temporary = self._events.with_suffix(".tmp")
        temporary.touch(mode=0o600)
        with self._events.open("rb") as file, temporary.open("wb") as later:
            file.seek(FILE_BYTES_MAX // 2)
            file.readline()  # the rest of an event
            shutil.copyfileobj(file, later)
        temporary.replace(self._events)

    def view(self, view: Mapping[str, Any], rates: Sequence[Sequence[Any]], *, last: bool) -> None:
        """Replace the view and the rates, every few seconds, and at the ``last`` one."""
        if not last and monotonic() < self._next_s:
            return
        self._next_s = monotonic() + _EVERY_S
        temporary = self._view.with_suffix(".tmp")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps({**view, "rates": rates}))
        temporary.replace(self._view)


class Page:
    """The kept page ``name`` in ``folder``. ``view``: its last one; ``rates``: those of the ten minutes before it."""

    def __init__(self, folder: Path, name: str, view: dict[str, Any]) -> None:
        self.name = name
        state = view.get("state")
        self.rates: list[Any] = view.get("rates", [])
        view = {field: value for field, value in view.items() if field != "rates"}
        self.view = {**view, "can_command": False, "state": state if state in ENDED else "gone"}
        self._events = folder / (name + _EVENTS)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The last events; a line that was written in part is left out."""
        found: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        try:
            with self._events.open("rb") as file:
                file.seek(max(0, file.seek(0, SEEK_END) - _EVENT_BYTES_MAX))
                lines = file.read(_EVENT_BYTES_MAX).splitlines()
        except OSError:
            return []
        for line in lines:
            with suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("number"), int):
                    found.append(event)
        return list(found)


def pages_in(folder: Path) -> Iterator[Page]:
    """Return the kept pages in ``folder``, the newest first. Other files are ignored."""
    try:
        files = sorted(folder.glob("*" + _VIEW), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return
    for path in files:
        page = page_in(folder, path.name.removesuffix(_VIEW))
        if page is not None:
            yield page


def page_in(folder: Path, name: str) -> Page | None:
    """Return the kept page ``name`` in ``folder``; None if there is none, or it is damaged."""
    if not _NAME.fullmatch(name):
        return None
    path = folder / (name + _VIEW)
    try:
        view = _view_at(path, path.stat().st_mtime_ns)
    except (OSError, ValueError, RecursionError):
        return None
    return Page(folder, name, view)


@lru_cache(_VIEWS_MAX)
def _view_at(path: Path, changed_ns: int) -> dict[str, Any]:
    """Return the view at ``path`` as of ``changed_ns``. It is read once: the list of pages is asked for often."""
    with path.open() as file:
        view: dict[str, Any] = json.loads(file.read(_VIEW_BYTES_MAX))
    msgspec.convert(view, _View)
    return view
