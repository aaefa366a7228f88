"""What DuckDB says: each query in SQL, over the same events."""

from __future__ import annotations

from typing import Any, Final

from examples.nexmark.events import GROUP, SIDE_INPUT, SIDE_KEYS, Events, Row

TEN_SECONDS: Final = 10_000
DAY: Final = 86_400_000

_RANK: Final = "case when price < 10000 then 1 when price < 1000000 then 2 else 3 end"

_STATISTICS: Final = ", ".join(
    f"count({what}) filter (where {where}) {name}{suffix}"
    for name, what in (("bids", "*"), ("bidders", "distinct bidder"), ("auctions", "distinct auction"))
    for where, suffix in (("true", ""), *((f"{_RANK} = {rank}", f"_{rank}") for rank in (1, 2, 3)))
)

_WINNING: Final = """
winning as (
    select a.id auction, b.price, b.bidder, a.expires, a.seller, a.category
    from auction a join bid b on b.auction = a.id and b.date_time between a.date_time and a.expires
    qualify row_number() over (partition by a.id order by b.price desc, b.date_time, b.bidder) = 1
)"""

AUCTION: Final = Events(GROUP).table("auction").schema.names

SQL: Final[dict[str, str]] = {
    "q0": "select * from bid",
    "q1": "select * replace (price * 908 // 1000 as price) from bid",
    "q2": "select auction, price from bid where auction % 123 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id
        from auction a join person p on p.id = a.seller
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')""",
    "q4": f"with {_WINNING} select category, avg(price) average from winning group by category",
    "q5": """
        with counts as (
            select (date_time // 2000 - o) * 2000 + 10000 as "end", auction, count(*) num
            from bid, unnest(range(5)) as offsets(o) group by all
        )
        select * from counts qualify num = max(num) over (partition by "end")""",
    "q6": f"""
        with {_WINNING}, last as (
            select * from winning
            qualify row_number() over (partition by seller order by expires desc, auction desc) <= 10
        )
        select seller, avg(price) average from last group by seller""",
    "q7": f"""
        select date_time // {TEN_SECONDS} * {TEN_SECONDS} + {TEN_SECONDS} as "end", auction, bidder, price
        from bid qualify price = max(price) over (partition by "end")""",
    "q8": f"""
        select distinct p.id, p.name, p.date_time // {TEN_SECONDS} * {TEN_SECONDS} as start
        from person p join auction a on a.seller = p.id and a.date_time // {TEN_SECONDS} = p.date_time // {TEN_SECONDS}
        """,
    "q11": f"""
        with gaps as (
            select bidder, date_time,
                coalesce(date_time - lag(date_time) over of_bidder >= {TEN_SECONDS}, true) is_first
            from bid window of_bidder as (partition by bidder order by date_time)
        ), numbered as (
            select bidder, date_time, sum(is_first::int)
                over (partition by bidder order by date_time rows unbounded preceding) number
            from gaps
        )
        select bidder, min(date_time) as start, max(date_time) + {TEN_SECONDS} as "end", count(*) bids
        from numbered group by bidder, number""",
    "q12": "select bidder, count(*) bids from bid group by bidder",
    "q13": f"select b.*, s.value from bid b join side_input s on s.key = b.auction % {SIDE_KEYS}",
    "q14": """
        select auction, bidder, price * 908 // 1000 as price, date_time,
            case when date_time // 3600000 % 24 between 8 and 18 then 'day'
                when date_time // 3600000 % 24 <= 6 or date_time // 3600000 % 24 >= 20 then 'night'
                else 'other' end time_of_day,
            len(extra) - len(replace(extra, 'c', '')) letters_c
        from bid where price * 908 // 1000 > 1000000 and price * 908 // 1000 < 50000000""",
    "q15": f"select date_time // {DAY} * {DAY} as day, {_STATISTICS} from bid group by day",
    "q16": f"select date_time // {DAY} * {DAY} as day, channel, {_STATISTICS} from bid group by day, channel",
    "q17": f"""
        select date_time // {DAY} * {DAY} as day, auction, count(*) bids,
            {", ".join(f"count(*) filter (where {_RANK} = {rank}) bids_{rank}" for rank in (1, 2, 3))},
            min(price) least, max(price) most, avg(price) mean, sum(price) as sum
        from bid group by day, auction""",
    "q18": """
        select * from bid
        qualify row_number() over (partition by bidder, auction order by date_time desc, price desc) = 1""",
    "q19": """
        select *, row_number() over (partition by auction order by price desc, date_time, bidder desc) as rank
        from bid qualify rank <= 10""",
    "q20": f"""
        select b.*, {", ".join(f"a.{name} auction_{name}" for name in AUCTION)}
        from bid b join auction a on a.id = b.auction where a.category = 10""",
}
"""Query -> SQL over the tables person, auction, bid and side_input."""


def by_duckdb(query: str, events: Events) -> list[Row]:
    """Return the result of a query, in no order."""
    import duckdb
    import pyarrow as pa

    with duckdb.connect() as connection:
        for kind in ("person", "auction", "bid"):
            connection.register(kind, events.table(kind))
        connection.register("side_input", pa.Table.from_pylist(SIDE_INPUT))
        found = connection.execute(SQL[query])
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, values, strict=True)) for values in found.fetchall()]


def totals(query: str, rows: list[Row]) -> list[Row]:
    """Return ``rows`` without what depends on the clock: of q12 the number of bids per bidder."""
    if query != "q12":
        return rows
    counts: dict[int, int] = {}
    for row in rows:
        counts[row["bidder"]] = counts.get(row["bidder"], 0) + row["bids"]
    return [{"bidder": bidder, "bids": bids} for bidder, bids in counts.items()]


def in_order(query: str, rows: list[Row]) -> list[tuple[tuple[str, Any], ...]]:
    """Return rows in an order that depends on their contents only, to be compared with `by_duckdb`."""
    return sorted(tuple(sorted(row.items())) for row in totals(query, rows))
