"""The events of Nexmark, an auction site: of each 50 events one is a new person, three are new auctions, 46 are bids.

Rule: an event follows from the seed and its number alone, so a part of a stream can continue at any position, and any
number of parts gives the same events. Prices, hot auctions, hot sellers and hot bidders are as in the generator of Beam
and Flink; random texts are shorter. Times are in milliseconds since 1970, money is in cents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from zlib import crc32

import numpy as np

from malstrom_py import sources

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

Kind = Literal["person", "auction", "bid"]
Row = dict[str, Any]

START_MS: Final = 1_436_918_400_000
"""2015-07-15T00:00:00Z, the time of the first event."""

GROUP: Final = 50
FIRST_ID: Final = 1000
"""The id of the first person, and of the first auction."""
FIRST_CATEGORY: Final = 10
CATEGORIES: Final = 5

HOT: Final = 100
"""One of so many persons, and of so many auctions, is a hot one."""
ACTIVE_PERSONS: Final = 1000
"""Persons who bid and sell are among the newest so many, or one of the next ten."""
ACTIVE_AUCTIONS: Final = 100
LEAD: Final = 10
CHANNELS: Final = 1000
EXTRA: Final = 16

SIDE_KEYS: Final = 100
SIDE_INPUT: Final[list[Row]] = [{"key": key, "value": f"value-{key}"} for key in range(SIDE_KEYS)]
"""A table that does not change, for q13."""

_STATES: Final = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_CITIES: Final = [
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
]
_FIRST: Final = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
_LAST: Final = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
_HOT_CHANNELS: Final = ["Google", "Facebook", "Baidu", "Apple"]


@dataclass(frozen=True)
class Events:
    """The streams of one auction site: ``persons()``, ``auctions()`` and ``bids()`` are sources of a job.

    ``count``: the events of all three together. ``per_second``: of event time. ``disorder_ms``: the time of an event is
    up to so much earlier than its place among the events says. ``columns``: the sources give Arrow batches, else dicts.

    >>> events = Events(100)
    >>> [len(events.rows(kind)) for kind in ("person", "auction", "bid")]
    [2, 6, 92]
    >>> import malstrom_py as mp
    >>> bids = mp.Job("docs").source("bids", events.bids())
    >>> mp.collect(bids.map("auction", lambda bid: bid["auction"]), count=3)
    [1000, 1000, 1010]
    """

    count: int = 100_000
    seed: int = 1
    parts: int = 1
    per_second: float = 10_000
    disorder_ms: int = 0
    columns: bool = False

    def persons(self) -> EventSource:
        """Return the source of new persons."""
        return EventSource(self, "person")

    def auctions(self) -> EventSource:
        """Return the source of new auctions."""
        return EventSource(self, "auction")

    def bids(self) -> EventSource:
        """Return the source of bids."""
        return EventSource(self, "bid")

    def side_input(self) -> sources.Memory[Row]:
        """Return the source of a table that does not change."""
        return sources.Memory(SIDE_INPUT, parts=self.parts)

    def table(self, kind: Kind) -> pa.Table:
        """Return all events of a kind as an Arrow table, in order."""
        import pyarrow as pa

        whole = Events(self.count, self.seed, 1, self.per_second, self.disorder_ms)
        batches = list(_batches(whole, kind, 0, 0, 65_536))
        return pa.Table.from_batches(batches or [_batch_of(whole, kind, np.arange(0))])

    def rows(self, kind: Kind) -> list[Row]:
        """Return all events of a kind as dicts, in order."""
        return [row for batch in self.table(kind).to_batches() for row in _rows_of(batch)]


@dataclass(frozen=True)
class EventSource:
    """The events of one kind as a source, with ``events.parts`` parts that share the groups of 50 in turn."""

    events: Events
    kind: Kind

    def list_parts(self) -> Sequence[str]:
        return [str(part) for part in range(self.events.parts)]

    def build_part(self, part: str, state: Any) -> EventPart:
        return EventPart(self.events, self.kind, int(part), state or 0)


class EventPart:
    """One part of a source, of ``length`` events. Its position is the number of those that it has given."""

    def __init__(self, events: Events, kind: Kind, part: int, position: int) -> None:
        self.length = _length(events, kind, part)
        self._kind: Kind = kind
        self._events, self._part, self._position = events, part, position
        self._batch: pa.RecordBatch | None = None
        self._begin = position

    def poll(self, rows_max: int) -> Any:
        made = self._batch
        if made is None or self._position - self._begin >= made.num_rows:
            self._begin = self._position
            self._batch = made = _batch(self._events, self._kind, self._part, self._position, max(rows_max, 1024))
        taken = made.slice(self._position - self._begin, rows_max)
        self._position += taken.num_rows
        return taken if self._events.columns else _rows_of(taken)

    def is_finished(self) -> bool:
        return self._position >= self.length

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        """Nothing is open."""


def _rows_of(batch: pa.RecordBatch) -> list[Row]:
    names = batch.schema.names
    columns = [column.to_pylist() for column in batch.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


_PLACES: Final[dict[str, tuple[int, int]]] = {"person": (0, 1), "auction": (1, 3), "bid": (4, 46)}
"""Kind -> the place of its first event in a group, and how many there are."""


def _length(events: Events, kind: Kind, part: int) -> int:
    """Return the number of events of a kind in a part."""
    first, each = _PLACES[kind]
    groups, rest = divmod(events.count, GROUP)
    whole = len(range(part, groups, events.parts))
    return whole * each + (min(max(rest - first, 0), each) if groups % events.parts == part else 0)


def _batches(events: Events, kind: Kind, part: int, position: int, rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(position, _length(events, kind, part), rows):
        yield _batch(events, kind, part, start, rows)


def _batch(events: Events, kind: Kind, part: int, start: int, rows: int) -> pa.RecordBatch:
    """Return up to ``rows`` events of a part, from ``start`` on."""
    first, each = _PLACES[kind]
    places = np.arange(start, min(start + rows, _length(events, kind, part)))
    return _batch_of(events, kind, (places // each * events.parts + part) * GROUP + first + places % each)


def _batch_of(events: Events, kind: Kind, numbers: NDArray[np.int64]) -> pa.RecordBatch:
    """Return the events of a kind with these ``numbers`` among all events."""
    import pyarrow as pa

    draw = Draw(events.seed, numbers)
    times = START_MS + (numbers * 1000 / events.per_second).astype(np.int64)
    if events.disorder_ms:
        times -= draw.below("disorder", events.disorder_ms + 1)
    return pa.RecordBatch.from_pydict(_COLUMNS[kind](draw, times, events))


class Draw:
    """Random numbers for the events with ``numbers``: a hash of seed, field and number."""

    def __init__(self, seed: int, numbers: NDArray[np.int64]) -> None:
        self.numbers = numbers
        self.person = numbers // GROUP
        """The newest person at each event, from 0."""
        self.auction = numbers // GROUP * 3 + np.clip(numbers % GROUP, 0, 3) - 1
        self._hashes = _mixed(numbers.astype(np.uint64) + _mixed(np.full(1, seed, np.uint64)))

    def bits(self, field: str) -> NDArray[np.uint64]:
        """Return 64 random bits for each event."""
        return _mixed(self._hashes ^ np.uint64(crc32(field.encode()) * 0x9E3779B1))

    def below(self, field: str, limit: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return whole numbers from 0 to ``limit`` - 1."""
        return (self.bits(field) % np.asarray(limit).astype(np.uint64)).astype(np.int64)

    def price(self, field: str) -> NDArray[np.int64]:
        """Return prices from 100 to 100,000,000: as many of two digits more as of two digits fewer."""
        return np.round(10 ** (self.bits(field) / 2**64 * 6) * 100).astype(np.int64)

    def any_person(self, field: str) -> NDArray[np.int64]:
        """Return one of the newest persons, or of the next ones."""
        active = np.minimum(self.person + 1, ACTIVE_PERSONS)
        return FIRST_ID + self.person + 1 - active + self.below(field, active + LEAD)

    def any_auction(self, field: str) -> NDArray[np.int64]:
        """Return one of the newest auctions, or of the next ones."""
        oldest = np.maximum(self.auction - ACTIVE_AUCTIONS, 0)
        return FIRST_ID + oldest + self.below(field, self.auction - oldest + 1 + LEAD)

    def texts(self, field: str) -> pa.Array:
        """Return texts of the letters a to p."""
        import pyarrow as pa

        shifts = np.arange(0, 4 * EXTRA, 4, dtype=np.uint64)
        letters = ((self.bits(field)[:, None] >> shifts) & np.uint64(15)).astype(np.uint8) + np.uint8(ord("a"))
        ends = np.arange(len(letters) + 1, dtype=np.int32) * np.int32(EXTRA)
        return pa.StringArray.from_buffers(len(letters), pa.py_buffer(ends), pa.py_buffer(letters.tobytes()))


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes of splitmix64."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _persons(draw: Draw, times: NDArray[np.int64], events: Events) -> dict[str, Any]:
    import pyarrow as pa

    first, last = (
        pa.array(names).take(pa.array(draw.below(field, len(names))))
        for field, names in (("first name", _FIRST), ("last name", _LAST))
    )
    names = [*zip(first.to_pylist(), last.to_pylist(), strict=True)]
    cards = [f"{card:016}" for card in draw.below("card", 10**16).tolist()]
    return {
        "id": FIRST_ID + draw.person,
        "name": pa.array([f"{one} {other}" for one, other in names], pa.string()),
        "email_address": pa.array([f"{one}@{other}.com".lower() for one, other in names], pa.string()),
        "credit_card": pa.array(cards, pa.string()),
        "city": pa.array(_CITIES).take(pa.array(draw.below("city", len(_CITIES)))),
        "state": pa.array(_STATES).take(pa.array(draw.below("state", len(_STATES)))),
        "date_time": times,
        "extra": draw.texts("extra"),
    }


def _auctions(draw: Draw, times: NDArray[np.int64], events: Events) -> dict[str, Any]:
    # So many auctions are open at a time; until as many events have passed, half of them end.
    horizon_ms = max(1, int(ACTIVE_AUCTIONS * GROUP / 3 * 1000 / events.per_second))
    hot_seller = FIRST_ID + draw.person // HOT * HOT
    bid = draw.price("initial bid")
    return {
        "id": FIRST_ID + draw.auction,
        "item_name": draw.texts("item name"),
        "description": draw.texts("description"),
        "initial_bid": bid,
        "reserve": bid + draw.price("reserve"),
        "date_time": times,
        "expires": times + 1 + draw.below("expires", 2 * horizon_ms),
        "seller": np.where(draw.below("is hot", 4) > 0, hot_seller, draw.any_person("seller")),
        "category": FIRST_CATEGORY + draw.below("category", CATEGORIES),
        "extra": draw.texts("extra"),
    }


def _bids(draw: Draw, times: NDArray[np.int64], events: Events) -> dict[str, Any]:
    import pyarrow as pa

    hot_auction = FIRST_ID + draw.auction // HOT * HOT
    hot_bidder = FIRST_ID + draw.person // HOT * HOT + 1
    channels = [*_HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]
    urls = [f"https://www.nexmark.com/item.htm?query=1&channel_id={crc32(channel.encode())}" for channel in channels]
    hot_channel = draw.below("hot channel", len(_HOT_CHANNELS))
    any_channel = len(_HOT_CHANNELS) + draw.below("channel", CHANNELS)
    channel = pa.array(np.where(draw.below("is hot channel", 2) > 0, hot_channel, any_channel))
    return {
        "auction": np.where(draw.below("is hot auction", 2) > 0, hot_auction, draw.any_auction("auction")),
        "bidder": np.where(draw.below("is hot bidder", 4) > 0, hot_bidder, draw.any_person("bidder")),
        "price": draw.price("price"),
        "channel": pa.array(channels).take(channel),
        "url": pa.array(urls).take(channel),
        "date_time": times,
        "extra": draw.texts("extra"),
    }


_COLUMNS: Final[dict[str, Callable[[Draw, NDArray[np.int64], Events], dict[str, Any]]]] = {
    "person": _persons,
    "auction": _auctions,
    "bid": _bids,
}
