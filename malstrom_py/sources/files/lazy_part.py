"""A part that opens its file when it is first polled: many parts may be built at once, and cost nothing until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class OpenedFile(Protocol):
    """Records of one file while they are read."""

    def poll(self, rows_max: int) -> Any:
        """The next rows; None at the end."""
        ...

    def is_finished(self) -> bool:
        """Whether the end has been reached."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """The position behind the last row."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class LazyPart:
    """Stands at ``position`` until ``open_at`` has opened the file there; never opens it if that is the end."""

    def __init__(self, position: dict[str, Any], open_at: Callable[[dict[str, Any]], OpenedFile]) -> None:
        self._position = position
        self._open_at = open_at
        self._opened: OpenedFile | None = None

    def poll(self, rows_max: int) -> Any:
        if self._opened is None:
            if self._position["finished"]:
                return None
            self._opened = self._open_at(self._position)
        return self._opened.poll(rows_max)

    def poll_columns(self, rows_max: int) -> Any:
        """`poll`, by the way that is fastest where nobody makes rows; what comes may be a `ColumnBatch`."""
        if self._opened is None:
            return self.poll(rows_max)
        poll: Callable[[int], Any] = getattr(self._opened, "poll_columns", self._opened.poll)
        return poll(rows_max)

    def is_finished(self) -> bool:
        return self._position["finished"] is True if self._opened is None else self._opened.is_finished()

    def snapshot(self) -> dict[str, Any]:
        return dict(self._position) if self._opened is None else self._opened.snapshot()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
