"""The state variables and timers that a `StatefulProcessor` of PySpark gets from its handle, for one key after another.

Rules. All state of a key is one dict, name of a variable -> what it holds, so that it moves, is stored and goes to
disk as the state of every step. What ends by time (``ttl``) is held with its end, and is not seen afterwards, as in
Spark; a timer removes it. Values are tuples of `StoredRow`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from malstrom_py.errors import PlanError
from malstrom_py.spark.stored_values import StoredRow

TIMERS: Final = ""
"""Where the state of a key has the times of its timers. No variable has such a name."""

ENDS: Final = " "
"""Where it has the time of the timer that removes what has ended."""


class Handle:
    """The handle of a processor: `StatefulProcessorHandle`, without Spark. ``mode``: none, processingtime, eventtime.

    ``of_key`` lets it be that of one key, with its state. ``set_timer(time, by_clock)`` sets a timer of it.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.state: dict[str, Any] = {}
        self.now_ms = self.watermark_ms = -1
        self._variables: dict[str, _Variable] = {}
        self._opened = True
        self._set_timer: Callable[[int, bool], None] = _no_timer

    def close(self) -> None:
        """Refuse further variables: they are made in ``init``."""
        self._opened = False

    def of_key(
        self, state: dict[str, Any], now_ms: int, watermark_ms: int, set_timer: Callable[[int, bool], None]
    ) -> None:
        """Let the variables and timers be those of one key from now on."""
        self.state, self.now_ms, self.watermark_ms, self._set_timer = state, now_ms, watermark_ms, set_timer

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Value:  # noqa: N802, N803  Spark's names
        """As `StatefulProcessorHandle.getValueState`."""
        return self._with(Value(self, stateName, schema, ttlDurationMs))

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> List:  # noqa: N802, N803
        """As `StatefulProcessorHandle.getListState`."""
        return self._with(List(self, stateName, schema, ttlDurationMs))

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: Any,  # noqa: N803
        valueSchema: Any,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> Map:
        """As `StatefulProcessorHandle.getMapState`."""
        return self._with(Map(self, stateName, userKeySchema, valueSchema, ttlDurationMs))

    def _with(self, variable: V) -> V:
        if not self._opened or variable.name in self._variables:
            raise PlanError(f"state {variable.name!r} must be made in init(), with a name that no other has")
        if variable.ttl_ms is not None and self.mode != "processingtime":
            raise PlanError(f'state {variable.name!r}: ttlDurationMs needs time_mode="processingTime", as in Spark')
        self._variables[variable.name] = variable
        return variable

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        """As `StatefulProcessorHandle.deleteIfExists`, for the present key; in ``init`` there is none."""
        self.state.pop(stateName, None)

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """As `StatefulProcessorHandle.registerTimer`."""
        time = self._time(expiryTimestampMs)
        times = self.state.setdefault(TIMERS, [])
        if time not in times:
            times.append(time)
            self._set_timer(time, self.mode == "processingtime")

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """As `StatefulProcessorHandle.deleteTimer`."""
        times = self.state.get(TIMERS, [])
        if (time := self._time(expiryTimestampMs)) in times:
            times.remove(time)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        """As `StatefulProcessorHandle.listTimers`."""
        self._time(0)
        return iter(sorted(self.state.get(TIMERS, ())))

    def _time(self, time: Any) -> int:
        if self.mode == "none":
            raise ValueError('timers need time_mode="processingTime" or "eventTime"')
        return int(time)

    def held(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of a key that has the variables ``given``, name -> state."""
        for name in given:
            if (variable := self._variables.get(name)) is None or variable.ttl_ms is not None:
                fault = "is not made in init()" if variable is None else "has ttlDurationMs, and a state no end"
                raise PlanError(f"initial_state has the variable {name!r}, which {fault}")
        return {name: self._variables[name].of(state) for name, state in given.items() if state is not None}

    def ends_at(self, ttl_ms: int) -> int:
        """Return when what is held now ends, and let a timer remove it then, unless one comes before."""
        until = self.now_ms + ttl_ms
        if ENDS not in self.state or self.state[ENDS] > until:
            self.state[ENDS] = until
            self._set_timer(until, True)
        return until

    def remove_ended(self) -> None:
        """Remove what has ended from the state of the key, and set a timer for what is left."""
        ends: list[int] = []
        del self.state[ENDS]
        for name, variable in self._variables.items():
            if variable.ttl_ms is None or name not in self.state:
                continue
            if left := variable.left(self.state.pop(name)):
                self.state[name] = left
                ends += variable.ends(left)
        if ends:
            self.state[ENDS] = min(ends)
            self._set_timer(min(ends), True)


def _no_timer(time: int, by_clock: bool) -> None:
    raise ValueError("a timer can be set where a key has rows or a timer, not in init(), and not in handleInitialState")


class _Variable(ABC):
    """One variable: the part of the state of the present key that has its ``name``."""

    def __init__(self, handle: Handle, name: str, schema: Any, ttl_ms: int | None) -> None:
        if not (isinstance(name, str) and name.strip()):
            raise PlanError(f"the name of a state must be a text that is not empty, not {name!r}")
        if ttl_ms is not None and ttl_ms <= 0:
            raise PlanError(f"state {name!r}: ttlDurationMs must be above 0, got {ttl_ms!r}")
        self._handle = handle
        self.name = name
        self._row = StoredRow(schema, f"state {name!r}")
        self.ttl_ms = ttl_ms

    def _held(self, value: Any) -> Any:
        """Return what is held of a value: with its end, if it has one."""
        value = self._row.of(value)
        return value if self.ttl_ms is None else (self._handle.ends_at(self.ttl_ms), value)

    def _seen(self, held: Any) -> Any:
        """Return what is held as a processor sees it; None if it has ended."""
        if held is None:
            return None
        if self.ttl_ms is not None:
            until, held = held
            if until <= self._handle.now_ms:
                return None
        return self._row.seen(held)

    def _seen_in(self, held: Iterable[Any]) -> Iterator[Any]:
        return (seen for one in held if (seen := self._seen(one)) is not None)

    @abstractmethod
    def of(self, given: Any) -> Any:
        """Return what is held of an initial state, which has tuples, or dicts of columns, as rows."""

    @abstractmethod
    def left(self, held: Any) -> Any:
        """Return what has not ended of what is held; empty if all has."""

    @abstractmethod
    def ends(self, held: Any) -> Iterable[int]:
        """Return the ends of what is held."""

    def clear(self) -> None:
        """As in Spark."""
        self._handle.state.pop(self.name, None)


def _row(given: Any) -> tuple[Any, ...]:
    """Return a row of an initial state as a tuple; a value alone is that of the only column."""
    return tuple(given.values()) if isinstance(given, Mapping) else given if isinstance(given, tuple) else (given,)


V = TypeVar("V", bound=_Variable)


class Value(_Variable):
    """A `ValueState` of PySpark."""

    def exists(self) -> bool:
        """As `ValueState.exists`."""
        return self.get() is not None

    def get(self) -> tuple[Any, ...] | None:
        """As `ValueState.get`."""
        held = self._handle.state.get(self.name)
        return held if self.ttl_ms is None and not self._row.nests else self._seen(held)

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803
        """As `ValueState.update`."""
        self._handle.state[self.name] = self._held(newValue)

    def of(self, given: Any) -> Any:
        return self._held(_row(given))

    def left(self, held: Any) -> Any:
        """Return what has not ended of what is held; empty if all has."""
        return held if self._seen(held) is not None else ()

    def ends(self, held: Any) -> Iterable[int]:
        """Return the ends of what is held."""
        return (held[0],)


class List(_Variable):
    """A `ListState` of PySpark."""

    def exists(self) -> bool:
        """As `ListState.exists`."""
        return next(self.get(), None) is not None

    def get(self) -> Iterator[tuple[Any, ...]]:
        """As `ListState.get`."""
        return self._seen_in(tuple(self._handle.state.get(self.name, ())))

    def put(self, newState: Iterable[tuple[Any, ...]]) -> None:  # noqa: N803
        """As `ListState.put`."""
        self._handle.state[self.name] = list(map(self._held, newState))

    def appendValue(self, newState: tuple[Any, ...]) -> None:  # noqa: N802, N803
        """As `ListState.appendValue`."""
        self.appendList([newState])

    def appendList(self, newState: Iterable[tuple[Any, ...]]) -> None:  # noqa: N802, N803
        """As `ListState.appendList`."""
        self._handle.state.setdefault(self.name, []).extend(map(self._held, newState))

    def of(self, given: Any) -> Any:
        return [self._held(_row(one)) for one in given]

    def left(self, held: Any) -> Any:
        """As `Value.left`."""
        return [one for one in held if self._seen(one) is not None]

    def ends(self, held: Any) -> Iterable[int]:
        """As `Value.ends`."""
        return (until for until, _ in held)


class Map(_Variable):
    """A `MapState` of PySpark."""

    def __init__(self, handle: Handle, name: str, keys: Any, schema: Any, ttl_ms: int | None) -> None:
        super().__init__(handle, name, schema, ttl_ms)
        self._key = StoredRow(keys, f"the keys of state {name!r}")

    def _entries(self) -> dict[Any, Any]:
        entries: dict[Any, Any] = self._handle.state.get(self.name, {})
        return entries

    def exists(self) -> bool:
        """As `MapState.exists`."""
        return next(self.keys(), None) is not None

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        """As `MapState.getValue`."""
        seen: tuple[Any, ...] | None = self._seen(self._entries().get(self._key.of(key)))
        return seen

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802
        """As `MapState.containsKey`."""
        return self.getValue(key) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        """As `MapState.updateValue`."""
        self._handle.state.setdefault(self.name, {})[self._key.of(key)] = self._held(value)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """As `MapState.iterator`."""
        entries = tuple(self._entries().items())
        return ((key, seen) for key, held in entries if (seen := self._seen(held)) is not None)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """As `MapState.keys`."""
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[tuple[Any, ...]]:
        """As `MapState.values`."""
        return (value for _, value in self.iterator())

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        """As `MapState.removeKey`."""
        self._entries().pop(self._key.of(key), None)

    def of(self, given: Any) -> Any:
        return {self._key.of(_row(key)): self._held(_row(one)) for key, one in given.items()}

    def left(self, held: Any) -> Any:
        """As `Value.left`."""
        return {key: one for key, one in held.items() if self._seen(one) is not None}

    def ends(self, held: Any) -> Iterable[int]:
        """As `Value.ends`."""
        return (until for until, _ in held.values())
