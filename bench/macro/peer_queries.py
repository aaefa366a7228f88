"""The workloads of `bench.macro.peers`, each in every form: the loop that one would write by hand, our job over rows
and over columns, and, from `bench.macro.peer_batch`, what a batch engine does with the whole table.

All forms return (results, check sum over them). W1, W2, q1 and q2 have the loop and the job over rows of
`bench.micro`. In q3 and q8 the rows are Nexmark's persons and auctions alone, in one stream; the columns are two
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

import malstrom_py as mp
from bench.macro import peer_batch as engines
from bench.macro.in_memory import InMemory
from bench.macro.peer_batch import EUROS, HOP_MS, NEAR, OF_INTEREST, WINDOW_MS
from bench.micro import inputs
from bench.micro import workloads as micro
from bench.micro.inputs import AUCTION, PERSON, START_MS, Bid, Listing
from bench.micro.workloads import Check, through
from malstrom_py import agg, windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    import pyarrow as pa

IN_ORDER: Final = mp.limit_out_of_orderness(0)
FAR: Final = 2**63
Stream = mp.StreamBuilder[Any, Any]


class Data:
    """The input of one query, in every form. ``tables``: name -> the names of the columns, and which rows it has."""

    def __init__(self, rows: list[Any], tables: Mapping[str, Columns], *, fresh: bool) -> None:
        self.rows = rows
        self._tables = tables
        self._fresh = fresh

    def renewed(self) -> Data:
        """The same data; of W1 with new strings."""
        if self._fresh:
            self.rows = inputs.fresh(self.rows)
        return self

    @cached_property
    def arrow(self) -> dict[str, pa.RecordBatch]:
        """The tables, as one record batch each."""
        kept = {
            name: (names, filter(keep, self.rows) if keep else self.rows)
            for name, (names, keep) in self._tables.items()
        }
        return {name: table(rows, *names) for name, (names, rows) in kept.items()}

    @cached_property
    def frames(self) -> dict[str, pl.DataFrame]:
        """The tables as frames."""
        return {name: pl.DataFrame(pl.from_arrow(batch)) for name, batch in self.arrow.items()}

    @cached_property
    def duckdb(self) -> Any:
        """A connection with one thread, in which the Arrow tables are views."""
        import duckdb
        import pyarrow as pa

        connection = duckdb.connect()
        connection.execute("set threads = 1")
        for name, batch in self.arrow.items():
            connection.register(name, pa.Table.from_batches([batch]))
        return connection


def table(rows: Iterable[Any], *names: str) -> pa.RecordBatch:
    """``rows`` as columns with these names; those without a name are left out."""
    import pyarrow as pa

    columns = zip(names, zip(*rows, strict=True), strict=True)
    return pa.RecordBatch.from_pydict({name: list(values) for name, values in columns if name})


Columns = tuple[tuple[str, ...], Callable[[Any], object] | None]
"""The names of the columns (empty: left out), and what says which rows are in the table; None: all."""


class Budgets(NamedTuple):
    """``rows``: of the speed of the loop; ``columns``: of the fastest batch engine; ``bytewax``: rows, of bytewax."""

    rows: float | None = None
    columns: float | None = None
    bytewax: float | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One workload in all forms. ``bytewax_rows``: the most rows that
    bytewax gets, where its time grows with the square.
    """

    name: str
    title: str
    make: Callable[[int], list[Any]]
    tables: Mapping[str, Columns]
    loop: Callable[[list[Any]], Check]
    job: Callable[[list[Any]], Check]
    columns: Callable[[Mapping[str, pa.RecordBatch]], Check]
    sql: str
    polars: Callable[[Mapping[str, pl.DataFrame]], Check]
    budgets: Budgets
    bytewax_rows: int = 1 << 40

    def data(self, n: int) -> Data:
        """The input of ``n`` rows."""
        return Data(self.make(n), self.tables, fresh=self.name == "W1")

    def duckdb(self, data: Data) -> Check:
        """What DuckDB finds."""
        count, total = data.duckdb.execute(self.sql).fetchone()
        return int(count), int(total)


# A sink that takes columns.


class Tally:
    """A sink that counts, and adds up what ``of_columns`` makes of a frame, or ``of_rows`` of a list of values.

    ``names``: the columns that are read, if not all are.
    """

    takes_columns = True

    def __init__(
        self,
        of_columns: Callable[[pl.DataFrame], Any],
        of_rows: Callable[[list[Any]], int],
        names: Sequence[str] | None = None,
    ) -> None:
        self._of_columns, self._of_rows, self._names = of_columns, of_rows, names
        self.check: Check = (0, 0)

    def build(self, worker: WorkerInfo) -> Tally:
        return self

    def write(self, batch: Batch) -> None:
        count, total = self.check
        if isinstance(batch, ColumnBatch):
            of = self._of_columns(batch.frame if self._names is None else batch.frame_of(self._names))
        else:
            of = self._of_rows(batch.values)
        self.check = count + len(batch), total + int(of)

    def close(self) -> None:
        """Nothing is open."""


def on_columns(
    build: Callable[..., Stream],
    of_columns: Callable[[pl.DataFrame], Any],
    of_rows: Callable[[list[Any]], int],
    names: Sequence[str] | None = None,
) -> Callable[[Mapping[str, pa.RecordBatch]], Check]:
    """A job from tables in memory through what ``build`` adds to a `Tally` of ``names``, with a source per table."""

    def run(tables: Mapping[str, pa.RecordBatch]) -> Check:
        job, tally = mp.Job("bench"), Tally(of_columns, of_rows, names)
        build(*(job.source(name, InMemory(columns)) for name, columns in tables.items())).sink("out", tally)
        mp.run(job, progress=False)
        return tally.check

    return run


def no_rows(values: list[Any]) -> int:
    """For jobs whose results are columns."""
    raise AssertionError(f"{len(values)} rows were made of columns")


def no_columns(frame: pl.DataFrame) -> int:
    """For jobs whose results are rows."""
    raise AssertionError(f"{frame.height} rows came as columns")


def bids_of(n: int) -> list[Bid]:
    """``n`` bids."""
    return inputs.bids(-(-n * 50 // 46))[:n]


def timed(stream: Stream, time: Any) -> Stream:
    """``stream`` with epochs; its rows are in order."""
    return stream.assign_timestamps("time", time).generate_epochs("epochs", IN_ORDER)[0]


col = pl.col

# W1 and W2


def w1_columns(pairs: Stream) -> Stream:
    return pairs.key_by("key", "key").sum("sum", by="value")


def w2_columns(rows: Stream) -> Stream:
    epochs = mp.limit_out_of_orderness(micro.BOUND_W2_MS)
    on_time = rows.assign_timestamps("time", "time").generate_epochs("epochs", epochs)[0]
    tens = on_time.key_by("key", "key").window("windows", windows.tumbling(WINDOW_MS))
    return tens.aggregate(n=agg.count(), total=agg.sum("value"))


def w2_frame(frame: pl.DataFrame) -> int:
    figures = col("value").struct
    weight = 3 * figures.field("n") + figures.field("total")
    return int(frame.select((weight * (col("start") // WINDOW_MS + 1)).sum()).item())


# q1 and q2


def q1_columns(bids: Stream) -> Stream:
    return bids.select("in-euros", "auction", "bidder", EUROS, "time", "extra")


def q2_columns(bids: Stream) -> Stream:
    return bids.filter("of-interest", OF_INTEREST).select("short", "auction", "price")


# q3: who sells in category 10 and lives in Oregon, Idaho or California. Both wait for each other, without a window.


def is_near(row: Listing) -> bool:
    return row[0] == PERSON and row[3] in NEAR


def in_category(row: Listing) -> bool:
    return row[0] == AUCTION and row[3] == "10"


def seller_of(row: Listing) -> int:
    return row[2]


def q3_loop(rows: list[Listing]) -> Check:
    persons: dict[int, Listing] = {}
    waiting: dict[int, list[Listing]] = {}
    count = total = 0
    for row in rows:
        if is_near(row):
            seller = seller_of(row)
            persons[seller] = row
            for auction in waiting.pop(seller, ()):
                count += 1
                total += auction[1] * 31 + row[1]
        elif in_category(row):
            seller = seller_of(row)
            person = persons.get(seller)
            if person is None:
                waiting.setdefault(seller, []).append(row)
            else:
                count += 1
                total += row[1] * 31 + person[1]
    return count, total


def q3_build(listings: Stream) -> Stream:
    sellers = listings.filter("near", is_near).key_by("person", seller_of)
    auctions = listings.filter("category", in_category).key_by("seller", seller_of)
    return auctions.join_table("sold-by", sellers, wait=True)


def q3_columns(persons: Stream, auctions: Stream) -> Stream:
    sellers = persons.filter("near", col("state").is_in(NEAR)).key_by("person", "id")
    sold = auctions.filter("category", col("category") == "10").key_by("seller", "seller")
    return sold.join_table("sold-by", sellers, wait=True)


def q3_total(pairs: list[Any]) -> int:
    return sum([auction[1] * 31 + person[1] for auction, person in pairs])


def q3_frame(pairs: pl.DataFrame) -> int:
    ids = col("left").struct.field("id") * 31 + col("right").struct.field("id")
    return int(pairs.select(ids.sum()).item())


def q3_named_total(pairs: list[Any]) -> int:
    return sum([auction["id"] * 31 + person["id"] for auction, person in pairs])


# q5: the auctions with the most bids in the last 10 s, every 2 s.


def auction_of(bid: Bid) -> int:
    return bid[0]


def price_of(bid: Bid) -> int:
    return bid[2]


def time_of(bid: Bid) -> int:
    return bid[5]


Counted = tuple[int, int, int]
"""The start of a window, an auction, and its bids in the window."""


def hottest(counts: list[Counted]) -> list[Counted]:
    most = max([bids for _, _, bids in counts])
    return [one for one in counts if one[2] == most]


def q5_loop(rows: list[Bid]) -> Check:
    opened: dict[int, dict[int, int]] = {}
    results: list[Counted] = []
    largest, first = -FAR, FAR

    def close(start: int) -> None:
        results.extend(hottest([(start, auction, bids) for auction, bids in opened.pop(start).items()]))

    for row in rows:
        time = time_of(row)
        if time >= largest:
            largest = time
            auction = auction_of(row)
            last = time - time % HOP_MS
            for start in (last, last - 2_000, last - 4_000, last - 6_000, last - 8_000):
                of_keys = opened.get(start)
                if of_keys is None:
                    of_keys = opened[start] = {}
                    first = min(first, start)
                of_keys[auction] = of_keys.get(auction, 0) + 1
            while first + WINDOW_MS <= time:
                close(first)
                first = min(opened)
    for start in sorted(opened):
        close(start)
    return len(results), q5_total(results)


def hop_of(start: int) -> int:
    return (start - START_MS) // HOP_MS + 6


def named(auction: int, window: Any) -> Counted:
    return window[0], auction, window[2]


def hop_start(counted: Counted) -> int:
    return counted[0]


def q5_build(bids: Stream) -> Stream:
    hops = timed(bids, time_of).key_by("auction", auction_of).window("hops", windows.sliding(WINDOW_MS, HOP_MS))
    counts = hops.count().map_with_key("name", named).key_by("by-hop", hop_start)
    of_hop = counts.window("hop", windows.tumbling(HOP_MS)).collect()
    return of_hop.flat_map("hottest", lambda window: hottest(window.value))


def q5_columns(bids: Stream) -> Stream:
    hops = timed(bids, "time").key_by("auction", "auction").window("hops", windows.sliding(WINDOW_MS, HOP_MS))
    counts = hops.aggregate(auction=agg.first("auction"), n=agg.count()).map_batches("most", with_most)
    hot = counts.filter("candidates", col("n") == col("most")).key_by("by-hop", "start")
    of_hop = hot.window("hop", windows.tumbling(HOP_MS)).collect()
    return of_hop.flat_map("hottest", lambda window: hottest([tuple(row.values())[:3] for row in window.value]))


def with_most(counts: pa.RecordBatch) -> pa.RecordBatch:
    """The counts with the most bids of their hop in this batch: an auction with fewer is not the hottest."""
    import numpy as np
    import pyarrow as pa

    start, value = counts.column("start"), counts.column("value")
    auction, n = value.flatten()
    hops, hop = np.unique(start.to_numpy(), return_inverse=True)
    most = np.zeros(len(hops), np.int64)
    np.maximum.at(most, hop, n.to_numpy())
    return pa.RecordBatch.from_pydict({"start": start, "auction": auction, "n": n, "most": most[hop]})


def q5_total(results: list[Counted]) -> int:
    return sum([(auction + bids) * hop_of(start) for start, auction, bids in results])


# q7: the highest bid of each 10 s.


def q7_loop(rows: list[Bid]) -> Check:
    highest: dict[int, dict[str, int]] = {}
    largest = -FAR
    for row in rows:
        time = time_of(row)
        if time >= largest:
            largest = time
            key, price = everything(row), price_of(row)
            start = time - time % WINDOW_MS
            of_keys = highest.get(start)
            if of_keys is None:
                of_keys = highest[start] = {}
            most = of_keys.get(key)
            if most is None or price > most:
                of_keys[key] = price
    results = [(start, price) for start, of_keys in highest.items() for price in of_keys.values()]
    return len(results), sum([price * window_of(start) for start, price in results])


def window_of(start: Any) -> Any:
    return (start - START_MS) // WINDOW_MS + 1


def everything(bid: Bid) -> str:
    return "all"


def q7_build(bids: Stream) -> Stream:
    tens = timed(bids, time_of).key_by("all", everything).window("tens", windows.tumbling(WINDOW_MS))
    return tens.max(price_of)


def q7_columns(bids: Stream) -> Stream:
    keyed = timed(bids.with_columns("all", all=pl.lit("all")), "time").key_by("key", "all")
    return keyed.window("tens", windows.tumbling(WINDOW_MS)).max("price")


def q7_frame(frame: pl.DataFrame) -> int:
    return int(frame.select((col("value") * window_of(col("start"))).sum()).item())


def q7_total(results: list[Any]) -> int:
    return sum([price * window_of(start) for start, _, price, _ in results])


# q8: who is new, and sells in the same 10 s.


def is_person(row: Listing) -> bool:
    return row[0] == PERSON


def listed_at(row: Listing) -> int:
    return row[4]


def q8_loop(rows: list[Listing]) -> Check:
    new: dict[int, set[int]] = {}
    selling: dict[int, set[int]] = {}
    largest = -FAR
    for row in rows:
        time = listed_at(row)
        if time >= largest:
            largest = time
            start = time - time % WINDOW_MS
            of = new if is_person(row) else selling
            persons = of.get(start)
            if persons is None:
                persons = of[start] = set()
            persons.add(seller_of(row))
    found = [(start, person) for start, persons in new.items() for person in persons & selling.get(start, set())]
    return len(found), sum([person * window_of(start) for start, person in found])


def q8_build(listings: Stream) -> Stream:
    persons, auctions = timed(listings, listed_at).branch("kind", is_person)
    new = persons.key_by("person", seller_of)
    pairs = new.join("selling", auctions.key_by("seller", seller_of), window=windows.tumbling(WINDOW_MS))
    return pairs.map("found", lambda pair: pair[0]).distinct("once", by=listed_at)


def q8_columns(persons: Stream, auctions: Stream) -> Stream:
    new = timed(persons, "time").key_by("person", "id")
    selling = auctions.assign_timestamps("listed", "time").generate_epochs("listed-by", IN_ORDER)[0]
    pairs = new.join("selling", selling.key_by("seller", "seller"), window=windows.tumbling(WINDOW_MS))
    found = [col("left").struct.field(name) for name in ("id", "time")]
    return pairs.select("found", *found).distinct("once", by="time")


def q8_frame(persons: pl.DataFrame) -> int:
    return int(persons.select((col("id") * window_of(col("time"))).sum()).item())


def q8_total(persons: list[Listing]) -> int:
    return sum([person * window_of(time) for _, person, _, _, time in persons])


BIDS: Final[Mapping[str, Columns]] = {"bids": (("auction", "bidder", "price", "channel", "url", "time", "extra"), None)}
LISTINGS: Final[Mapping[str, Columns]] = {
    "persons": (("", "id", "", "state", "time"), is_person),
    "auctions": (("", "id", "seller", "category", "time"), lambda row: row[0] == AUCTION),
}


QUERIES: Final = (
    Query(
        *("W1", "running sum per key"),
        make=lambda n: inputs.w1(n, zipf=False),
        tables={"w1": (("key", "value"), None)},
        loop=micro.w1_loop,
        job=micro.w1_job,
        columns=on_columns(w1_columns, lambda frame: frame.to_series(0).sum(), sum),
        sql=engines.W1_SQL,
        polars=engines.w1_polars,
        budgets=Budgets(0.80, 1.0),
    ),
    Query(
        *("W2", "count and sum per key and 10 s"),
        make=inputs.w2,
        tables={"w2": (("key", "time", "value"), None)},
        loop=micro.w2_loop,
        job=micro.w2_job,
        columns=on_columns(w2_columns, w2_frame, micro.w2_total),
        sql=engines.W2_SQL,
        polars=engines.w2_polars,
        budgets=Budgets(0.45, 0.45, 10),
    ),
    Query(
        *("q1", "map: a currency"),
        make=bids_of,
        tables=BIDS,
        loop=micro.q1_loop,
        job=micro.q1_job,
        columns=on_columns(q1_columns, lambda frame: frame["price"].sum(), no_rows, ["price"]),
        sql=engines.Q1_SQL,
        polars=engines.q1_polars,
        budgets=Budgets(0.85, 0.35),
    ),
    Query(
        *("q2", "filter: some auctions"),
        make=bids_of,
        tables=BIDS,
        loop=micro.q2_loop,
        job=micro.q2_job,
        columns=on_columns(q2_columns, engines.auctions_and_prices, no_rows),
        sql=engines.Q2_SQL,
        polars=engines.q2_polars,
        budgets=Budgets(0.75, 0.35),
    ),
    Query(
        *("q3", "join: who sells where"),
        make=inputs.listings,
        tables=LISTINGS,
        loop=q3_loop,
        job=through(q3_build, q3_total),
        columns=on_columns(q3_columns, q3_frame, q3_named_total),
        sql=engines.Q3_SQL,
        polars=engines.q3_polars,
        budgets=Budgets(0.35, 0.25, 10),
    ),
    Query(
        *("q5", "hot items: 10 s every 2 s"),
        make=bids_of,
        tables=BIDS,
        loop=q5_loop,
        job=through(q5_build, q5_total),
        columns=on_columns(q5_columns, no_columns, q5_total),
        sql=engines.Q5_SQL,
        polars=engines.q5_polars,
        budgets=Budgets(0.45, 1.0, 10),
    ),
    Query(
        *("q7", "highest bid per 10 s"),
        make=bids_of,
        tables=BIDS,
        loop=q7_loop,
        job=through(q7_build, q7_total),
        columns=on_columns(q7_columns, q7_frame, q7_total),
        sql=engines.Q7_SQL,
        polars=engines.q7_polars,
        budgets=Budgets(0.40, 0.5, 8),
    ),
    Query(
        *("q8", "join: new persons who sell in 10 s"),
        make=inputs.listings,
        tables=LISTINGS,
        loop=q8_loop,
        job=through(q8_build, q8_total),
        columns=on_columns(q8_columns, q8_frame, no_rows),
        sql=engines.Q8_SQL,
        polars=engines.q8_polars,
        budgets=Budgets(),
        bytewax_rows=50_000,
    ),
)
