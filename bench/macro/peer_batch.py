"""The workloads of `bench.macro.peers` for Polars and DuckDB, over the whole table. All return (results, check sum over
them).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from bench.micro.inputs import START_MS
from bench.micro.workloads import Check

HOP_MS: Final = 2_000
WINDOW_MS: Final = 10_000
NEAR: Final = ("OR", "ID", "CA")

col = pl.col
EUROS: Final = col("price") * 908 // 1000
OF_INTEREST: Final = col("auction") % 123 == 0


def auctions_and_prices(frame: pl.DataFrame) -> int:
    return int(frame["auction"].sum()) + int(frame["price"].sum())


def w1_polars(frames: Mapping[str, pl.DataFrame]) -> Check:
    sums = frames["w1"].select(col("value").cum_sum().over("key"))
    return sums.height, int(sums["value"].sum())


def w2_polars(frames: Mapping[str, pl.DataFrame]) -> Check:
    found = frames["w2"].group_by("key", w=col("time") // WINDOW_MS)
    figures = found.agg(n=pl.len().cast(pl.Int64), total=col("value").sum())
    total = figures.select(((3 * col("n") + col("total")) * (col("w") + 1)).sum()).item()
    return figures.height, int(total)


def q1_polars(frames: Mapping[str, pl.DataFrame]) -> Check:
    bids = frames["bids"].select("auction", "bidder", EUROS, "time", "extra")
    return bids.height, int(bids["price"].sum())


def q2_polars(frames: Mapping[str, pl.DataFrame]) -> Check:
    bids = frames["bids"].filter(OF_INTEREST).select("auction", "price")
    return bids.height, auctions_and_prices(bids)


def q3_polars(frames: Mapping[str, pl.DataFrame]) -> Check:
    persons = frames["persons"].filter(col("state").is_in(NEAR)).select(person="id")
    auctions = frames["auctions"].filter(col("category") == "10")
    pairs = auctions.join(persons, left_on="seller", right_on="person")
    return pairs.height, int(pairs.select((col("id") * 31 + col("seller")).sum()).item())


def q5_polars(frames: Mapping[str, pl.DataFrame]) -> Check:
    panes = frames["bids"].group_by("auction", hop=col("time") // HOP_MS).agg(n=pl.len().cast(pl.Int64))
    hops = pl.concat([panes.select("auction", "n", hop=col("hop") - back) for back in range(5)])
    counts = hops.group_by("hop", "auction").agg(col("n").sum())
    hot = counts.filter(col("n") == col("n").max().over("hop"))
    weight = col("hop") - START_MS // HOP_MS + 6
    return hot.height, int(hot.select(((col("auction") + col("n")) * weight).sum()).item())


def q7_polars(frames: Mapping[str, pl.DataFrame]) -> Check:
    highest = frames["bids"].group_by(w=(col("time") - START_MS) // WINDOW_MS).agg(col("price").max())
    return highest.height, int(highest.select((col("price") * (col("w") + 1)).sum()).item())


def q8_polars(frames: Mapping[str, pl.DataFrame]) -> Check:
    window = (col("time") - START_MS) // WINDOW_MS
    auctions = frames["auctions"].select("seller", w=window)
    persons = frames["persons"].select("id", w=window)
    found = persons.join(auctions, left_on=["id", "w"], right_on=["seller", "w"], how="semi")
    return found.height, int(found.select((col("id") * (col("w") + 1)).sum()).item())


# The statements for DuckDB.

W1_SQL: Final = """
with numbered as (select *, row_number() over () as n from w1),
sums as (select sum(value) over (partition by key order by n) as total from numbered)
select count(*), sum(total) from sums"""
W2_SQL: Final = f"""
with found as (select key, time // {WINDOW_MS} as w, count(*) as n, sum(value) as total from w2 group by all)
select count(*), sum((3 * n + total) * (w + 1)) from found"""
Q1_SQL: Final = """
with euros as (select auction, bidder, price * 908 // 1000 as price, time, extra from bids)
select count(*), sum(price) from euros"""
Q2_SQL: Final = "select count(*), sum(auction + price) from bids where auction % 123 = 0"
Q3_SQL: Final = f"""
select count(*), sum(auctions.id * 31 + persons.id) from auctions join persons on auctions.seller = persons.id
where auctions.category = '10' and persons.state in {NEAR}"""
Q5_SQL: Final = f"""
with panes as (select auction, time // {HOP_MS} as pane, count(*) as n from bids group by all),
hops as (select auction, pane - back as hop, n from panes, (select unnest([0, 1, 2, 3, 4]) as back)),
counts as (select hop, auction, sum(n) as n from hops group by all),
hot as (select hop, max(n) as n from counts group by hop)
select count(*), sum((auction + counts.n) * (counts.hop - {START_MS // HOP_MS} + 6))
from counts join hot on counts.hop = hot.hop and counts.n = hot.n"""
Q7_SQL: Final = f"""
with found as (select (time - {START_MS}) // {WINDOW_MS} as w, max(price) as price from bids group by 1)
select count(*), sum(price * (w + 1)) from found"""
Q8_SQL: Final = f"""
with found as (select distinct persons.id, (persons.time - {START_MS}) // {WINDOW_MS} as w from persons join auctions
on auctions.seller = persons.id and persons.time // {WINDOW_MS} = auctions.time // {WINDOW_MS})
select count(*), sum(id * (w + 1)) from found"""
