"""The queries of Nexmark, each a function of the streams that it asks about, by the names of its parameters.

Where a step names columns instead of calling a function, the query is the same for rows and columns; a query that is
written in another way for columns is in `COLUMNS`. q9 is the step `winning_bids` of q4 and q6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from inspect import signature
from typing import Any, Final

import polars as pl

import malstrom_py as mp
from examples.nexmark.events import SIDE_KEYS, Events, Row
from malstrom_py import agg, sinks, windows

Stream = mp.StreamBuilder[None, Row]
Rows = mp.StreamBuilder[Any, Row]
Query = Callable[..., Rows]

BOUND: Final = timedelta(seconds=1)
"""How far out of order events may be."""
TEN_SECONDS: Final = timedelta(seconds=10)
DAY: Final = timedelta(days=1)
BID: Final = Events(0).table("bid").schema.names
AUCTION: Final = Events(0).table("auction").schema.names
LAST_SALES: Final = 10
LOCAL: Final = ["OR", "ID", "CA"]
PLACE: Final = ("name", "city", "state")


def in_time(stream: Stream, name: str) -> Stream:
    """Return ``stream`` on event time."""
    timed = stream.assign_timestamps(f"{name}-time", "date_time")
    on_time, _ = timed.generate_epochs(f"{name}-epochs", mp.limit_out_of_orderness(BOUND))
    return on_time


def q0(bids: Stream) -> Rows:
    """Pass through: what do reading and writing cost?"""
    return bids


def q1(bids: Stream) -> Rows:
    """Currency conversion: what are the prices in euros?"""
    return bids.map("euros", lambda bid: {**bid, "price": bid["price"] * 908 // 1000})


def q1_columns(bids: Stream) -> Rows:
    """The same by a Polars expression."""
    return bids.with_columns("euros", price=pl.col("price") * 908 // 1000)


def q2(bids: Stream) -> Rows:
    """Selection: what is bid for some of the auctions?"""
    some = bids.filter("some", lambda bid: bid["auction"] % 123 == 0)
    return some.map("price", lambda bid: {"auction": bid["auction"], "price": bid["price"]})


def q2_columns(bids: Stream) -> Rows:
    """The same by Polars expressions."""
    return bids.filter("some", pl.col("auction") % 123 == 0).select("price", "auction", "price")


def q3(persons: Stream, auctions: Stream) -> Rows:
    """Local items: who sells things of category 10 in Oregon, Idaho or California?"""
    local = persons.filter("local", lambda person: person["state"] in LOCAL)
    return sellers_of(local, auctions.filter("category", lambda auction: auction["category"] == 10))


def q3_columns(persons: Stream, auctions: Stream) -> Rows:
    """The same, filtered by Polars expressions."""
    local = persons.filter("local", pl.col("state").is_in(LOCAL))
    return sellers_of(local, auctions.filter("category", pl.col("category") == 10))


def sellers_of(persons: Stream, auctions: Stream) -> Rows:
    """Return auctions with their sellers. An auction may be read before its seller, so it waits."""
    sellers = persons.key_by("person", "id")
    return (
        auctions.key_by("seller", "seller")
        .join_table("sold-by", sellers, wait=True)
        .map("row", lambda both: {"id": both[0]["id"], **{field: both[1][field] for field in PLACE}})
    )


def q5(bids: Stream) -> Rows:
    """Hot items: which auctions had the most bids of the last ten seconds, every two seconds?"""
    every = timedelta(seconds=2)
    hops = in_time(bids, "bids").key_by("auction", "auction").window("hops", windows.sliding(TEN_SECONDS, every))
    counts = hops.count().map_with_key("counted", "auction")
    # All windows that end at the same time are in one window of two seconds, and no others.
    per_end = counts.key_by("end", "end").window("hot", windows.tumbling(every))
    hottest = per_end.fold(most("value"), default=list, merge=more("value"))
    return hottest.flat_map("hottest", lambda hot: hot.value).select("row", "end", "auction", num="value")


def most(field: str) -> Callable[[list[Row], Row], list[Row]]:
    """Return a function that keeps the rows with the largest ``field``, all if there are several."""

    def add(best: list[Row], row: Row) -> list[Row]:
        if not best or row[field] > best[0][field]:
            return [row]
        return [*best, row] if row[field] == best[0][field] else best

    return add


def more(field: str) -> Callable[[list[Row], list[Row]], list[Row]]:
    """Return a function that joins two results of `most`."""

    def merge(one: list[Row], other: list[Row]) -> list[Row]:
        if not one or not other or one[0][field] == other[0][field]:
            return [*one, *other]
        return max(one, other, key=lambda rows: rows[0][field])

    return merge


def q7(bids: Stream) -> Rows:
    """Highest bid: which bids had the highest price of each ten seconds?"""
    all_bids = in_time(bids, "bids").key_by("all", lambda bid: 0)
    highest = all_bids.window("ten-seconds", windows.tumbling(TEN_SECONDS)).fold(
        most("price"), default=list, merge=more("price")
    )
    return highest.flat_map("highest", lambda window: [short(bid, window.end) for bid in window.value])


def short(bid: Row, end: int) -> Row:
    """Return what q7 says of a bid."""
    return {"end": end, "auction": bid["auction"], "bidder": bid["bidder"], "price": bid["price"]}


def q8(persons: Stream, auctions: Stream) -> Rows:
    """New users: who registered and opened an auction within the same ten seconds?"""
    sellers = in_time(auctions, "auctions").key_by("seller", "seller")
    opened = sellers.window("opened", windows.tumbling(TEN_SECONDS)).count()
    people = in_time(persons, "persons").key_by("person", "id")
    return people.join("new-sellers", opened, window=windows.tumbling(TEN_SECONDS)).map(
        "new-seller", lambda both: {"id": both[0]["id"], "name": both[0]["name"], "start": both[1].start}
    )


def as_kind(kind: str) -> Callable[[Row], tuple[str, Row]]:
    """Return a function that puts ``kind`` before an event."""
    return lambda event: (kind, event)


def winning_bids(auctions: Stream, bids: Stream) -> mp.KeyedStreamBuilder[Any, Row]:
    """q9: the highest bid of each auction while it was open, when it closes; of equal ones the earliest."""
    opened = in_time(auctions, "auctions").map("auction", as_kind("auction"))
    made = in_time(bids, "bids").map("bid", as_kind("bid"))
    both = opened.union("auctions-and-bids", made)
    return both.key_by("sale", lambda event: event[1]["id" if event[0] == "auction" else "auction"]).stateful_op(
        "winning", Closing()
    )


State = tuple[Row | None, list[Row]]
"""An auction, once it is known, and bids for it."""


class Closing(mp.KeyedLogic[Any, tuple[str, Row], Row, State]):
    """Keeps an auction with its best bid until it closes, and bids that come before their auction until it must be
    there: streams have no order among each other.
    """

    def on_data(
        self, message: mp.DataMessage[Any, tuple[str, Row]], key_state: State | None, output: mp.Output[Any, Row]
    ) -> State:
        kind, event = message.value
        auction, bids = key_state or (None, [])
        if kind == "auction":
            output.set_timer(message.key, event["expires"])
            return event, best(event, bids)
        if auction is None:
            output.set_timer(message.key, event["date_time"])
            return None, [*bids, event]
        return auction, best(auction, [*bids, event])

    def on_timer(self, key: Any, time: int, key_state: State | None, output: mp.Output[Any, Row]) -> State | None:
        auction, bids = key_state or (None, [])
        if auction is None:  # its auction would be here, were there one that was open at the time of the bid
            left = [bid for bid in bids if bid["date_time"] > time]
            return (None, left) if left else None
        if time < auction["expires"]:
            return key_state
        for bid in bids:
            sale = {"auction": key, "price": bid["price"], "bidder": bid["bidder"], "expires": auction["expires"]}
            output.emit(key, {**sale, "seller": auction["seller"], "category": auction["category"]}, time)
        return None


def best(auction: Row, bids: Iterable[Row]) -> list[Row]:
    """Return a list with the best of the bids while the auction was open, if there is one."""
    valid = [bid for bid in bids if auction["date_time"] <= bid["date_time"] <= auction["expires"]]
    return sorted(valid, key=lambda bid: (-bid["price"], bid["date_time"], bid["bidder"]))[:1]


def q4(auctions: Stream, bids: Stream) -> Rows:
    """Average price: what do auctions of each category sell for?"""
    sales = winning_bids(auctions, bids).key_by("category", lambda sale: sale["category"])
    average = sales.mean("average", by=lambda sale: sale["price"]).final()
    return average.map_with_key("row", lambda category, price: {"category": category, "average": price})


def q6(auctions: Stream, bids: Stream) -> Rows:
    """Average selling price: what did the last ten sales of each seller bring?"""
    sales = winning_bids(auctions, bids).key_by("seller", lambda sale: sale["seller"])
    # Auctions close on all workers, in no order among these: the last ten are those by time.
    last = sales.top_n("last-ten", LAST_SALES, by=lambda sale: (sale["expires"], sale["auction"])).final()
    return last.map_with_key("row", average_price)


def average_price(seller: int, sales: list[Row]) -> Row:
    """Return the average price of a seller's sales."""
    return {"seller": seller, "average": sum(sale["price"] for sale in sales) / len(sales)}


def q11(bids: Stream) -> Rows:
    """User sessions: how many bids did a person make in each session of activity?"""
    sessions = in_time(bids, "bids").key_by("bidder", "bidder").window("session", windows.session(TEN_SECONDS))
    return bids_of_bidders(sessions.count())


def q12(bids: Stream) -> Rows:
    """Processing-time windows: how many bids does a person make in ten seconds by the clock?"""
    by_clock = windows.tumbling(TEN_SECONDS, clock="processing")
    counts = bids.key_by("bidder", "bidder").window("by-clock", by_clock).count()
    return bids_of_bidders(counts)


def bids_of_bidders(counts: mp.KeyedStreamBuilder[Any, windows.WindowResult[int]]) -> Rows:
    """Return rows of counts of windows by bidder."""
    return counts.map_with_key("counted", "bidder").select("row", "bidder", "start", "end", bids="value")


def q13(bids: Stream, side_input: Stream) -> Rows:
    """Bounded side input: each bid with the value of its auction's number in a table."""
    keyed = bids.key_by("number", lambda bid: bid["auction"] % SIDE_KEYS)
    return keyed.join_table("value", side_input.key_by("key", "key"), wait=True).map(
        "row", lambda both: {**both[0], "value": both[1]["value"]}
    )


def q14(bids: Stream) -> Rows:
    """Calculation: the time of day of each bid in a range of prices, and the letters c in its text."""
    in_euros = q1(bids).filter("in-range", lambda bid: 1_000_000 < bid["price"] < 50_000_000)
    return in_euros.map(
        "calculated",
        lambda bid: {
            **{field: bid[field] for field in ("auction", "bidder", "price", "date_time")},
            "time_of_day": time_of_day(bid["date_time"] // 3_600_000 % 24),
            "letters_c": bid["extra"].count("c"),
        },
    )


def time_of_day(hour: int) -> str:
    """Return the name of an hour."""
    if 8 <= hour <= 18:
        return "day"
    return "night" if hour <= 6 or hour >= 20 else "other"


def q14_columns(bids: Stream) -> Rows:
    """The same by Polars expressions."""
    hour = pl.col("date_time") // 3_600_000 % 24
    in_euros = q1_columns(bids).filter("in-range", pl.col("price").is_between(1_000_000, 50_000_000, closed="none"))
    return in_euros.select(
        "calculated",
        *("auction", "bidder", "price", "date_time"),
        time_of_day=pl.when(hour.is_between(8, 18))
        .then(pl.lit("day"))
        .when((hour <= 6) | (hour >= 20))
        .then(pl.lit("night"))
        .otherwise(pl.lit("other")),
        letters_c=pl.col("extra").str.count_matches("c", literal=True).cast(pl.Int64),
    )


RANKED: Final = ("price", "bidder", "auction")
"""The fields of a bid that q15, q16 and q17 look at for each rank of its price."""


def ranked(bid: Row) -> Row:
    """Return a bid with its fields of each rank, None for those that are not its rank."""
    rank = 1 if bid["price"] < 10_000 else 2 if bid["price"] < 1_000_000 else 3
    of_ranks = {f"{field}_{one}": bid[field] if one == rank else None for field in RANKED for one in (1, 2, 3)}
    return {**bid, "all": 0, **of_ranks}


def ranked_columns(bids: Stream) -> Stream:
    """Do the same by Polars expressions."""
    price = pl.col("price")
    ranks = {1: price < 10_000, 2: (price >= 10_000) & (price < 1_000_000), 3: price >= 1_000_000}
    of_ranks = {f"{field}_{one}": pl.when(rank).then(pl.col(field)) for field in RANKED for one, rank in ranks.items()}
    return bids.with_columns("ranked", all=pl.lit(0), **of_ranks)


def per_rank(name: str, field: str, figure: Callable[..., Any]) -> dict[str, Any]:
    """Return the ``figure`` of ``field`` for the bids of each rank."""
    return {f"{name}_{rank}": figure(f"{field}_{rank}", skip_nulls=True) for rank in (1, 2, 3)}


STATISTICS: Final[dict[str, Any]] = {
    "bids": agg.count(),
    **per_rank("bids", "price", agg.count),
    "bidders": agg.n_unique("bidder"),
    **per_rank("bidders", "bidder", agg.n_unique),
    "auctions": agg.n_unique("auction"),
    **per_rank("auctions", "auction", agg.n_unique),
}
"""The figures of q15 and q16: bids, bidders and auctions, in all and per rank."""

PRICES: Final[dict[str, Any]] = {
    "bids": agg.count(),
    **per_rank("bids", "price", agg.count),
    "least": agg.min("price"),
    "most": agg.max("price"),
    "mean": agg.mean("price"),
    "sum": agg.sum("price"),
}
"""The figures of q17."""


def per_day(bids: Stream, key: str, figures: dict[str, Any]) -> Rows:
    """Return rows of the ``figures`` of ranked bids, for each day and each value of the field ``key``."""
    days = in_time(bids, "bids").key_by(key, key).window("day", windows.tumbling(DAY)).aggregate(**figures)
    of_day = days.map_with_key("figures", key)
    found = [pl.col("value").struct.field(figure) for figure in figures]
    return of_day.select("row", *found, day="start", **({} if key == "all" else {key: key}))


def q15(bids: Stream) -> Rows:
    """Bidding statistics: how many bids, bidders and auctions has each day, in all and per rank of price?"""
    return per_day(bids.map("ranked", ranked), "all", STATISTICS)


def q15_columns(bids: Stream) -> Rows:
    """The same, ranked by Polars expressions."""
    return per_day(ranked_columns(bids), "all", STATISTICS)


def q16(bids: Stream) -> Rows:
    """Channel statistics: the same for each channel."""
    return per_day(bids.map("ranked", ranked), "channel", STATISTICS)


def q16_columns(bids: Stream) -> Rows:
    """The same, ranked by Polars expressions."""
    return per_day(ranked_columns(bids), "channel", STATISTICS)


def q17(bids: Stream) -> Rows:
    """Auction statistics: how many bids of each rank, and which prices, has each auction per day?"""
    return per_day(bids.map("ranked", ranked), "auction", PRICES)


def q17_columns(bids: Stream) -> Rows:
    """The same, ranked by Polars expressions."""
    return per_day(ranked_columns(bids), "auction", PRICES)


def q18(bids: Stream) -> Rows:
    """Last bid: what did each person bid last in each auction? Of several at the same time the highest price."""
    pairs = bids.key_by("pair", lambda bid: (bid["bidder"], bid["auction"]))
    return pairs.reduce("last", lambda *bids: max(bids, key=lambda bid: (bid["date_time"], bid["price"]))).final()


def q19(bids: Stream) -> Rows:
    """Top ten: which are the ten highest bids of each auction? Of equal ones the earliest."""
    auctions = bids.key_by("auction", "auction")
    best_bids = auctions.top_n("ten", 10, by=lambda bid: (bid["price"], -bid["date_time"], bid["bidder"])).final()
    return best_bids.flat_map("row", lambda bids: [{**bid, "rank": place} for place, bid in enumerate(bids, 1)])


def q20(auctions: Stream, bids: Stream) -> Rows:
    """Expanded bids: each bid for an auction of category 10, with that auction."""
    sold = auctions.key_by("id", "id")
    expanded = bids.key_by("auction", "auction").join_table("bid-for", sold, wait=True)
    of_category = expanded.filter("category", lambda both: both[1]["category"] == 10)
    return of_category.map("row", lambda both: {**both[0], **{f"auction_{name}": of for name, of in both[1].items()}})


def q20_columns(auctions: Stream, bids: Stream) -> Rows:
    """The same by Polars expressions of the pairs."""
    expanded = bids.key_by("auction", "auction").join_table("bid-for", auctions.key_by("id", "id"), wait=True)
    bid, auction = pl.col("left").struct, pl.col("right").struct
    of_category = expanded.filter("category", auction.field("category") == 10)
    fields = [bid.field(name) for name in BID]
    return of_category.select("row", *fields, **{f"auction_{name}": auction.field(name) for name in AUCTION})


QUERIES: Final[dict[str, Query]] = {
    query.__name__: query
    for query in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q11, q12, q13, q14, q15, q16, q17, q18, q19, q20)
}
"""Name -> query."""

COLUMNS: Final[dict[str, Query]] = {
    query.__name__.removesuffix("_columns"): query
    for query in (q1_columns, q2_columns, q3_columns, q14_columns, q15_columns, q16_columns, q17_columns, q20_columns)
}
"""Name -> query as written for columns, where that is different."""


def query_of(name: str, events: Events) -> Query:
    """Return the query ``name`` as written for rows, or for columns if ``events`` gives these."""
    return COLUMNS.get(name, QUERIES[name]) if events.columns else QUERIES[name]


def job_of(name: str, events: Events, out: sinks.StatelessSink | sinks.TransactionalSink) -> mp.Job:
    """Return the job that writes the results of query ``name`` over ``events`` to ``out``."""
    query, job = query_of(name, events), mp.Job(f"nexmark-{name}")
    streams = {stream: job.source(stream, getattr(events, stream)()) for stream in signature(query).parameters}
    query(**streams).sink("out", out)
    return job
