"""Kafka: rows per second of `sources.Kafka` in a job, beside a bare loop of librdkafka's client over the same topic.

``python -m bench.macro.kafka --rows 300000``. The broker is librdkafka's mock, in this process. The bare loop decodes
JSON with the standard library, as its users do, or takes the records only.

Then a job of plain functions, ``map``, ``filter`` and ``key_by`` before an aggregate, beside the same job with
``compile=False``: seconds of the thread of its worker, because the broker and librdkafka take more of the process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import malstrom_py as mp
from malstrom_py import agg, sinks, sources

TOPIC = "bench"


def main(rows: int) -> dict[str, float]:
    """Return the ratios, by what is compared."""
    from confluent_kafka import Producer

    options = {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0}
    producer = Producer({**options, "queue.buffering.max.messages": rows + 1})
    broker = next(iter(producer.list_topics(timeout=20).brokers.values()))
    for number in range(rows):
        producer.produce(TOPIC, json.dumps({"number": number, "name": f"item {number % 100}", "price": 2.5}).encode())
    assert producer.flush(60) == 0
    bootstrap = f"{broker.host}:{broker.port}"
    loops = {"json": lambda message: json.loads(message.value()), "records": lambda message: message.value()}
    ratios = {}
    for name, decode in loops.items():
        bare_s = min(bare(bootstrap, rows, decode) for _ in range(2))
        ours_s = min(ours(bootstrap, rows, records=name == "records") for _ in range(2))
        ratios[name] = bare_s / ours_s
        print(f"{name}: bare {rows / bare_s:,.0f} rows/s, job {rows / ours_s:,.0f} rows/s, ratio {ratios[name]:.2f}")
    ratios["columns"] = plain_functions(bootstrap, rows)
    return ratios


def plain_functions(bootstrap: str, rows: int) -> float:
    """Return how many times faster JSON and functions are in columns than called row by row."""
    forms = (True, False)
    took_s = {compiled: min(mapped(bootstrap, compiled=compiled) for _ in range(3)) for compiled in forms}
    each = [
        f"{took_s[compiled] / rows * 1e9:,.0f} ns a row {'in columns' if compiled else 'called'}" for compiled in forms
    ]
    print(f"functions: {', '.join(each)}, {took_s[False] / took_s[True]:.2f} times")
    return took_s[False] / took_s[True]


def mapped(bootstrap: str, *, compiled: bool) -> float:
    """Return the seconds of a job that maps, filters and aggregates what it reads."""
    job = mp.Job("bench", compile=compiled)
    read = job.source("in", sources.Kafka(bootstrap, TOPIC, follow=False))
    made = read.map("m", lambda row: {"number": row["number"], "price": row["price"] * 1.19})
    kept = made.filter("f", lambda row: row["number"] % 5 > 0).key_by("k", lambda row: row["number"] % 1000)
    kept.aggregate("a", total=agg.sum("price"), n=agg.count()).sink("out", sinks.Callable(len, batch=True))
    started_s = time.thread_time()
    mp.run(job, progress=False)
    return time.thread_time() - started_s


def bare(bootstrap: str, rows: int, decode: Callable[[Any], Any]) -> float:
    """Return the seconds of a loop of ``consume()``."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bare", "enable.auto.commit": False})
    partitions = consumer.list_topics(TOPIC, timeout=20).topics[TOPIC].partitions
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in partitions])
    read, started_s = 0, time.perf_counter()
    while read < rows:
        read += len([decode(message) for message in consumer.consume(10_000, 0.1) if message.error() is None])
    took_s = time.perf_counter() - started_s
    consumer.close()
    return took_s


def ours(bootstrap: str, rows: int, *, records: bool) -> float:
    """Return the seconds of a job that counts what it reads."""
    seen = [0]

    def count(batch: Any) -> None:
        seen[0] += len(batch.values)

    source = sources.Kafka(bootstrap, TOPIC, follow=False, records=records, value=bytes if records else None)
    job = mp.Job("bench")
    job.source("in", source).sink("out", sinks.Callable(count, batch=True))
    started_s = time.perf_counter()
    mp.run(job)
    assert seen[0] == rows, f"{seen[0]} of {rows} rows"
    return time.perf_counter() - started_s


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    main(parser.parse_args().rows)
