"""Processors as users of PySpark write them: for tests, and for a benchmark, that run them here and by Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

COUNTED = "key string, n long"


class Sum(StatefulProcessor):
    """Sends the running sum of ``n`` for each row."""

    def init(self, handle: Any) -> None:
        self._sum = handle.getValueState("sum", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        total = self._sum.get()[0] if self._sum.exists() else 0
        for row in rows:
            total += row.n
            yield Row(key=str(key[0]), n=total)
            self._sum.update((total,))


class SumInPandas(Sum):
    """The same, over frames of pandas."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        import pandas as pd  # type: ignore[import-untyped]

        for frame in rows:
            sums = frame["n"].cumsum() + (self._sum.get() or (0,))[0]
            self._sum.update((sums.iloc[-1],))
            yield pd.DataFrame({"key": str(key[0]), "n": sums})


class Stock(StatefulProcessor):
    """Keeps a count of each item in a map, and the last three rows in a list; an item that is at 0 is removed."""

    OUTPUT = "key string, items string, last string"

    def init(self, handle: Any) -> None:
        self._items = handle.getMapState("items", "item string", "count long")
        self._last = handle.getListState("last", "n long, item string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            item = (row.item,)
            count = (self._items.getValue(item)[0] if self._items.containsKey(item) else 0) + row.n
            if count:
                self._items.updateValue(item, (count,))
            else:
                self._items.removeKey(item)
            self._last.appendValue((row.n, row.item))
            last = list(self._last.get())
            if len(last) > 3:
                self._last.put(last[1:])
            items = sorted((*one, *count) for one, count in self._items.iterator())
            yield Row(key=str(key[0]), items=str(items), last=str([tuple(one) for one in self._last.get()]))


class Silence(StatefulProcessor):
    """Sends how many rows a key has had once none has come for ``pause_ms``, by timers of event time."""

    OUTPUT = "key string, n long, at long"

    def __init__(self, pause_ms: int = 5) -> None:
        self._pause_ms = pause_ms

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", "n long, last long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        n, last = self._seen.get() or (0, -1)
        for row in rows:
            n, last = n + 1, max(last, row.at_ms)
        for time in list(self._handle.listTimers()):
            self._handle.deleteTimer(time)
        self._handle.registerTimer(max(last, timerValues.getCurrentWatermarkInMs()) + self._pause_ms)
        self._seen.update((n, last))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        n, last = self._seen.get()
        self._seen.clear()
        yield Row(key=str(key[0]), n=n, at=last)


class Fading(StatefulProcessor):
    """Counts the rows of a key, and those of each item, for as long as the counts last."""

    OUTPUT = "key string, n long, items string, rows long"

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long", 1000)
        self._items = handle.getMapState("items", "item string", "n long", 2000)
        self._rows = handle.getListState("rows", "n long", 3000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            self._count.update(((self._count.get() or (0,))[0] + 1,))
            self._items.updateValue((row.item,), ((self._items.getValue((row.item,)) or (0,))[0] + 1,))
            self._rows.appendValue((row.n,))
            items = sorted((*one, *n) for one, n in self._items.iterator())
            n, rows_left = self._count.get()[0], len(list(self._rows.get()))
            yield Row(key=str(key[0]), n=n, items=str(items), rows=rows_left)


class Lasting(StatefulProcessor):
    """Sends what it finds of each variable, of those that last and those that end after ``short_ms``, as its timers do.

    A timer comes when the short ones have ended, unless a later row has deleted it.
    """

    OUTPUT = "key string, n long, seen string"

    def __init__(self, short_ms: int) -> None:
        self._short_ms = short_ms

    def init(self, handle: Any) -> None:
        self._handle = handle
        lasting = {"short": self._short_ms, "long": 3_600_000, "ever": None}
        self._values = [handle.getValueState(f"v-{name}", "n long", ttl) for name, ttl in lasting.items()]
        self._lists = [handle.getListState(f"l-{name}", "n long", ttl) for name, ttl in lasting.items()]
        self._maps = [handle.getMapState(f"m-{name}", "item string", "n long", ttl) for name, ttl in lasting.items()]

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            yield Row(key=str(key[0]), n=row.n, seen=self._seen())
            for value in self._values:
                if row.n < 0:
                    value.clear()
                else:
                    value.update((row.n,))
            for held in self._lists:
                if row.n % 3 == 2:
                    held.put([(row.n,), (-1,)])
                else:
                    held.appendValue((row.n,))
            for held in self._maps:
                held.updateValue((row.item,), (row.n,))
                if row.n % 3 == 1:
                    held.removeKey(("y",))
            due = timerValues.getCurrentProcessingTimeInMs() + self._short_ms
            self._handle.registerTimer(due)
            self._handle.registerTimer(due + 3_600_000)
            if row.n == 3:
                self._handle.deleteTimer(due)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        is_due = timerValues.getCurrentProcessingTimeInMs() >= expiredTimerInfo.getExpiryTimeInMs()
        yield Row(key=str(key[0]), n=-100 if is_due else -200, seen=self._seen())

    def _seen(self) -> str:
        values = [(one.exists(), one.get() and tuple(one.get())) for one in self._values]
        lists = [(one.exists(), [tuple(each) for each in one.get()]) for one in self._lists]
        maps = [sorted((*name, *value) for name, value in one.iterator()) for one in self._maps]
        found = [(one.exists(), one.containsKey(("x",)), one.getValue(("y",)) is None) for one in self._maps]
        return str((values, lists, maps, found, len(list(self._handle.listTimers()))))


SILENT = "key string, n long, at long"
SEEN = "n long, last long"


def silent(key: Any, frames: Any, state: Any, pause_ms: int = 40_000) -> Iterator[Any]:
    """Sends how many rows a key has had once none has come for ``pause_ms``: for `applyInPandasWithState`."""
    import pandas as pd

    n, last = state.getOption or (0, -1)
    if state.hasTimedOut:
        assert [list(frame.at_ms) for frame in frames] == [[]]
        state.remove()
        yield pd.DataFrame({"key": [str(key[0])], "n": [n], "at": [last]})
        return
    for frame in frames:
        n, last = n + len(frame), max(last, int(frame.at_ms.max()))
    state.update((n, last))
    state.setTimeoutTimestamp(max(last, state.getCurrentWatermarkMs()) + pause_ms)


def timed_once(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    """Sets a timeout with the first rows of a key, and changes nothing until it comes."""
    import pandas as pd

    if state.hasTimedOut:
        yield pd.DataFrame({"key": [str(key[0])], "n": [state.get[0]], "at": [state.get[1]]})
        state.update((2, -1))
    elif not state.exists:
        first = min(int(frame.at_ms.min()) for frame in frames)
        state.update((1, first))
        state.setTimeoutTimestamp(first + 100_000)


class Sends(StatefulProcessor):
    """Sends one row, or one frame of one row, for each call."""

    def __init__(self, row: dict[str, Any], *, in_pandas: bool) -> None:
        self._row = row
        self._in_pandas = in_pandas

    def init(self, handle: Any) -> None:
        """Has no state."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        for _ in rows:
            pass
        if self._in_pandas:
            import pandas as pd

            yield pd.DataFrame({name: pd.Series([value]) for name, value in self._row.items()})
        else:
            yield Row(**self._row)


class Keeps(StatefulProcessor):
    """Sends what each state of one column has once a value was stored in it: a value, a list, a map's key and value."""

    OUTPUT = "at int, seen string"

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self._pairs = pairs

    def init(self, handle: Any) -> None:
        kinds = [kind for kind, _ in self._pairs]
        self._values = [handle.getValueState(f"v-{n}", f"v {kind}") for n, kind in enumerate(kinds)]
        self._lists = [handle.getListState(f"l-{n}", f"v {kind}") for n, kind in enumerate(kinds)]
        self._maps = [handle.getMapState(f"m-{n}", f"v {kind}", f"v {kind}") for n, kind in enumerate(kinds)]

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for at, (_, value) in enumerate(self._pairs):
            self._values[at].update((value,))
            self._lists[at].put([(value,)])
            seen = [self._values[at].get(), *self._lists[at].get()]
            if not isinstance(value, list | dict | tuple):
                self._maps[at].updateValue((value,), (value,))
                seen += [*self._maps[at].keys(), self._maps[at].getValue((value,))]
            kept = [one and one[0] for one in seen]
            yield Row(at=at, seen=repr([tuple(one) if isinstance(one, tuple) else one for one in kept]))
