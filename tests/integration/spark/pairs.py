"""Calls of PySpark and what they are here, as text: the tables of "If you know PySpark", each row with equal results.

`FRAMES` are of ``df`` and ``stream``; `COLUMNS` are what ``df.select`` and ``stream.select`` take.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

SALES: Final[list[dict[str, Any]]] = [
    {"id": id, "shop": shop, "item": item, "price": price, "n": n, "note": note, "tags": tags, "time": time, "doc": doc}
    for id, shop, item, price, n, note, tags, time, doc in [
        (
            1,
            "north",
            " Lamp",
            20.5,
            2,
            "new",
            ["light", "home"],
            datetime(2024, 2, 28, 23, 59, 5, tzinfo=UTC),
            '{"color": "red", "size": 3}',
        ),
        (
            2,
            "south",
            "Chair",
            -9.25,
            1,
            None,
            ["home"],
            datetime(2024, 2, 28, 23, 59, 50, tzinfo=UTC),
            '{"color": "blue"}',
        ),
        (3, "north", "Chair", 30.75, 4, "old-new", [], datetime(2024, 2, 29, 0, 0, 10, tzinfo=UTC), '{"size": 5}'),
        (4, "north", "desk 7", 100.0, 1, None, ["work", "home"], datetime(2024, 2, 29, 0, 5, 0, tzinfo=UTC), None),
        (
            5,
            "south",
            "Chair",
            30.75,
            3,
            "old",
            ["home"],
            datetime(2024, 3, 1, 12, 30, 0, tzinfo=UTC),
            '{"color": "red", "size": 1}',
        ),
    ]
]

STOCK: Final = {"Chair": 4, "desk 7": 0}

FRAMES: Final = [
    ('df.select("shop", "price")', 'stream.select("s", "shop", "price")'),
    ('df.select(F.col("price").alias("cost"))', 'stream.select("s", cost="price")'),
    ('df.selectExpr("price * n AS total")', 'stream.select("s", total=pl.col("price") * pl.col("n"))'),
    ('df.withColumn("net", F.col("price") / 2)', 'stream.with_columns("w", net=pl.col("price") / 2)'),
    ('df.withColumnRenamed("n", "pieces")', 'stream.select("s", pl.exclude("n"), pieces="n")'),
    ('df.drop("note", "tags")', 'stream.select("s", pl.exclude("note", "tags"))'),
    ('df.where(F.col("price") > 10)', 'stream.filter("f", pl.col("price") > 10)'),
    ('df.dropna(subset=["note"])', 'stream.filter("f", pl.col("note").is_not_null())'),
    ('df.fillna({"note": "-"})', 'stream.with_columns("w", note=pl.col("note").fill_null("-"))'),
    ('df.replace("old", "used", ["note"])', 'stream.with_columns("w", note=pl.col("note").replace("old", "used"))'),
    ("df.unionByName(df)", 'stream.union("u", stream)'),
    (
        'df.select("id", F.explode("tags").alias("tag"))',
        'stream.flat_map("m", lambda row: [{"id": row["id"], "tag": tag} for tag in row["tags"]])',
    ),
    ('df.select(F.udf(shout, "string")("item").alias("x"))', 'stream.map("m", lambda row: {"x": shout(row["item"])})'),
    (
        'df.select("id", "n").mapInArrow(each_doubled, "id long, n long")',
        'stream.select("s", "id", "n").map_batches("m", doubled)',
    ),
    ('df.select("item").distinct()', 'stream.select("s", "item").key_by("k", "item").distinct("d", by="item")'),
    (
        'df.groupBy("shop").count()',
        'stream.key_by("k", "shop").aggregate("a", count=agg.count()).final().map_with_key("m", "shop")',
    ),
    *(
        (
            f'df.groupBy("shop").agg(F.{theirs}.alias("x"))',
            f'stream.key_by("k", "shop").aggregate("a", x=agg.{ours}).final().map_with_key("m", "shop")',
        )
        for theirs, ours in [
            ('sum("price")', 'sum("price")'),
            ('avg("price")', 'mean("price")'),
            ('min("price")', 'min("price")'),
            ('max("price")', 'max("price")'),
            ('countDistinct("item")', 'n_unique("item")'),
            ('stddev("price")', 'std("price")'),
        ]
    ),
    (
        'df.groupBy("shop").agg(F.max_by("item", "price").alias("x"))',
        (
            'stream.key_by("k", "shop").reduce("r", lambda best, row: row if row["price"] > best["price"] else best)'
            '.final().select("s", "shop", x="item")'
        ),
    ),
    (
        'df.groupBy("shop").agg(F.collect_list("item").alias("x"))',
        (
            'stream.key_by("k", "shop").fold("c", lambda items, row: [*items, row["item"]], default=list).final()'
            '.map_with_key("m", lambda shop, items: {"shop": shop, "x": items})'
        ),
    ),
    (
        'df.groupBy("shop").agg(F.sort_array(F.collect_set("item")).alias("x"))',
        (
            'stream.key_by("k", "shop").fold("c", lambda items, row: items | {row["item"]}, default=set).final()'
            '.map_with_key("m", lambda shop, items: {"shop": shop, "x": sorted(items)})'
        ),
    ),
    (
        'df.groupBy("shop").count().where("count > 2")',
        'stream.group_by("shop").agg(count=agg.count()).final().filter("f", pl.col("count") > 2)',
    ),
    (
        'df.groupBy("shop", "item").agg(F.count("*").alias("n"), F.sum("price").alias("x"))',
        'stream.group_by("shop", "item").agg(n=agg.count(), x=agg.sum("price")).final()',
    ),
    (
        'df.groupBy("note").agg(F.count("note").alias("n"), F.count("*").alias("all"))',
        'stream.group_by("note").agg(n=agg.count("note", skip_nulls=True), all=agg.count()).final()',
    ),
    (
        (
            'df.withWatermark("time", "1 minute").groupBy("shop", F.window("time", "1 minute", "10 seconds"))'
            '.agg(F.sum("price").alias("x")).select("shop", "window.start", "x")'
        ),
        (
            'stream.with_watermark("time", "1 minute").group_by("shop").window("1 minute", "10 seconds")'
            '.agg(x=agg.sum("price")).select("s", "shop", "x", start="window_start")'
        ),
    ),
    (
        'df.groupBy("shop", F.window("time", "1 minute")).count().select("shop", "window.start", "count")',
        (
            'timed.key_by("k", "shop").window("w", windows.tumbling(timedelta(minutes=1))).aggregate(count=agg.count())'
            '.flat("f").select("s", "shop", "count", start="window_start")'
        ),
    ),
    (
        'df.groupBy("shop", F.session_window("time", "2 minutes")).count().select("shop", "session_window", "count")',
        (
            'timed.group_by("shop").session_window("2 minutes").agg(count=agg.count())'
            '.select("s", "shop", "count", session_window=pl.struct(start="window_start", end="window_end"))'
        ),
    ),
    (
        'df.withColumn("x", F.sum("n").over(Window.partitionBy("shop").orderBy("id")))',
        (
            'stream.key_by("k", "shop").stateful_map("w", lambda shop, row, total: '
            '({**row, "x": total + row["n"]}, total + row["n"]), default=int)'
        ),
    ),
    (
        'df.withColumn("x", F.row_number().over(Window.partitionBy("shop").orderBy("id")))',
        (
            'stream.key_by("k", "shop").stateful_map("w", lambda shop, row, n: ({**row, "x": n + 1}, n + 1), '
            "default=int)"
        ),
    ),
    (
        'df.withColumn("x", F.lag("price").over(Window.partitionBy("shop").orderBy("id")))',
        'stream.key_by("k", "shop").stateful_map("w", lambda shop, row, last: ({**row, "x": last}, row["price"]))',
    ),
    (
        (
            'df.withColumn("x", F.row_number().over(Window.partitionBy("shop").orderBy(F.desc("price"))))'
            '.where("x <= 2").select("id")'
        ),
        'stream.key_by("k", "shop").top_n("t", 2, by="price").final().flatten("f").select("s", "id")',
    ),
    (
        'df.join(F.broadcast(stock), "item").select("id", "left")',
        (
            'stream.filter("f", lambda row: row["item"] in STOCK)'
            '.map("m", lambda row: {"id": row["id"], "left": STOCK[row["item"]]})'
        ),
    ),
    (
        'df.join(F.broadcast(stock), "item", "left").select("id", "left")',
        'stream.map("m", lambda row: {"id": row["id"], "left": STOCK.get(row["item"])})',
    ),
    (
        (
            'df.alias("a").join(df.alias("b"), F.expr("a.shop = b.shop AND b.time BETWEEN a.time AND '
            'a.time + INTERVAL 2 MINUTES")).select("a.id", F.col("b.id").alias("next"))'
        ),
        (
            'timed.key_by("a", "shop").join_interval("j", timed.key_by("b", "shop"), lower=timedelta(0), '
            'upper=timedelta(minutes=2)).map("m", lambda pair: {"id": pair.left["id"], "next": pair.right["id"]})'
        ),
    ),
]

COLUMNS: Final = [
    ("F.lit(1)", "pl.lit(1)"),
    ('F.col("price") * F.col("n") - 1', 'pl.col("price") * pl.col("n") - 1'),
    ('F.abs("price")', 'pl.col("price").abs()'),
    ('F.floor("price")', 'pl.col("price").floor().cast(pl.Int64)'),
    ('F.ceil("price")', 'pl.col("price").ceil().cast(pl.Int64)'),
    ('F.round("price", 1)', 'pl.col("price").round(1, mode="half_away_from_zero")'),
    ('F.pow("n", F.lit(2))', 'pl.col("n").cast(pl.Float64).pow(2)'),
    ('F.sqrt("n")', 'pl.col("n").sqrt()'),
    ('F.greatest("n", "id")', 'pl.max_horizontal("n", "id")'),
    ('F.least("n", "id")', 'pl.min_horizontal("n", "id")'),
    (
        'F.when(F.col("n") > 2, "many").otherwise("few")',
        'pl.when(pl.col("n") > 2).then(pl.lit("many")).otherwise(pl.lit("few"))',
    ),
    ('F.coalesce("note", "item")', 'pl.coalesce("note", "item")'),
    ('F.col("note").isNull()', 'pl.col("note").is_null()'),
    ('F.col("n").between(2, 3)', 'pl.col("n").is_between(2, 3)'),
    ('F.col("shop").isin("north", "east")', 'pl.col("shop").is_in(["north", "east"])'),
    ('F.col("note").eqNullSafe("new")', 'pl.col("note").eq_missing(pl.lit("new"))'),
    ('F.col("price").cast("int")', 'pl.col("price").cast(pl.Int32)'),
    ('F.col("n").cast("string")', 'pl.col("n").cast(pl.String)'),
    ('F.upper("item")', 'pl.col("item").str.to_uppercase()'),
    ('F.lower("item")', 'pl.col("item").str.to_lowercase()'),
    ('F.trim("item")', 'pl.col("item").str.strip_chars(" ")'),
    ('F.length("item")', 'pl.col("item").str.len_chars().cast(pl.Int32)'),
    ('F.substring("shop", 2, 3)', 'pl.col("shop").str.slice(1, 3)'),
    ('F.concat("shop", "note")', 'pl.concat_str("shop", "note")'),
    ('F.concat_ws("-", "shop", "note")', 'pl.concat_str("shop", "note", separator="-", ignore_nulls=True)'),
    ('F.split("note", "-")', 'pl.col("note").str.split("-")'),
    ('F.regexp_replace("item", "[aeiou]", "*")', 'pl.col("item").str.replace_all("[aeiou]", "*")'),
    ('F.lpad("shop", 7, ".")', 'pl.col("shop").str.pad_start(7, ".")'),
    ('F.reverse("shop")', 'pl.col("shop").str.reverse()'),
    ('F.col("shop").startswith("no")', 'pl.col("shop").str.starts_with("no")'),
    ('F.col("shop").endswith("th")', 'pl.col("shop").str.ends_with("th")'),
    ('F.col("item").contains("ai")', 'pl.col("item").str.contains("ai", literal=True)'),
    ('F.col("item").rlike("[0-9]")', 'pl.col("item").str.contains("[0-9]")'),
    ('F.size("tags")', 'pl.col("tags").list.len().cast(pl.Int32)'),
    ('F.array_contains("tags", "home")', 'pl.col("tags").list.contains("home")'),
    ('F.array_join("tags", ",")', 'pl.col("tags").list.join(",")'),
    ('F.sort_array("tags")', 'pl.col("tags").list.sort()'),
    ('F.get("tags", F.lit(0))', 'pl.col("tags").list.get(0, null_on_oob=True)'),
    ('F.struct("shop", "n")', 'pl.struct("shop", "n")'),
    ('F.get_json_object("doc", "$.color")', 'pl.col("doc").str.json_path_match("$.color")'),
    (
        'F.from_json("doc", "color string, size long")',
        'pl.col("doc").str.json_decode(pl.Struct({"color": pl.String, "size": pl.Int64}))',
    ),
    ('F.to_json(F.struct("shop", "n"))', 'pl.struct("shop", "n").struct.json_encode()'),
    ('F.to_date("time")', 'pl.col("time").dt.date()'),
    ('F.year("time")', 'pl.col("time").dt.year()'),
    ('F.month("time")', 'pl.col("time").dt.month().cast(pl.Int32)'),
    ('F.dayofmonth("time")', 'pl.col("time").dt.day().cast(pl.Int32)'),
    ('F.hour("time")', 'pl.col("time").dt.hour().cast(pl.Int32)'),
    ('F.date_trunc("hour", "time")', 'pl.col("time").dt.truncate("1h")'),
    ('F.date_add(F.to_date("time"), 1)', 'pl.col("time").dt.date() + timedelta(days=1)'),
    ('F.unix_timestamp("time")', 'pl.col("time").dt.epoch("s")'),
    ('F.date_format("time", "yyyy-MM-dd HH:mm")', 'pl.col("time").dt.strftime("%Y-%m-%d %H:%M")'),
]


def tables() -> list[str]:
    """The two tables of the page."""
    rows = [[f"| `{theirs}` | `{ours}` |" for theirs, ours in pairs] for pairs in (FRAMES, COLUMNS)]
    return ["\n".join(["| PySpark | here |", "|---|---|", *table]) for table in rows]


if __name__ == "__main__":
    print("\n\n".join(tables()))
