"""Both ends of Kafka together: the contracts, the rules of transactions that they rely on, and kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_broker import Broker, check
from tests.servers import wait_until
from tests.tree import ROOT

PARTITIONS = 3
RECORDS = 4_000

JOB = """
import sys, time
import malstrom_py as mp
from malstrom_py import sinks, sources

bootstrap, orders, totals, store, workers, slow = sys.argv[1:]

def pace(order):
    time.sleep(float(slow))
    return order

if __name__ == "__main__":
    job = mp.Job("totals")
    stream = job.source("orders", sources.Kafka(bootstrap, orders, follow=False)).map("pace", pace)
    running = stream.key_by("customer", "customer").sum("total", by="amount")
    running.sink("out", sinks.Kafka(bootstrap, totals, exactly_once=True))
    mp.run(job, workers=int(workers), snapshots=mp.Snapshots(store, interval_s=0.1), progress=False)
"""


def test_both_ends_keep_their_contracts(kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malstrom_py.connectors.kafka.reader._WAIT_S", 0.01)  # a part that is closed waits for a poll
    check(kafka, cuts_max=3)


def test_aborted_and_open_rows_are_hidden_and_an_older_producer_is_fenced(kafka: Broker) -> None:
    from confluent_kafka import KafkaException

    topic = kafka.new_topic()

    def send(producer: Any, value: int) -> None:
        producer.begin_transaction()
        producer.produce(topic, str(value).encode(), partition=0)
        assert producer.flush(10) == 0

    old = kafka.transactions(topic)
    send(old, 1)
    old.commit_transaction(10)
    send(old, 2)
    old.abort_transaction(10)
    send(old, 3)
    assert kafka.visible(topic) == [1]
    new = kafka.transactions(topic)
    with pytest.raises(KafkaException):
        old.commit_transaction(10)
    send(new, 4)
    new.commit_transaction(10)
    assert kafka.visible(topic) == [1, 4]


def test_s7_a_job_that_is_killed_four_times_and_resumed_at_other_sizes_is_exact(kafka: Broker, tmp_path: Path) -> None:
    read, written = kafka.new_topic(PARTITIONS), kafka.new_topic()
    orders = [{"customer": f"c{number % 50}", "amount": number} for number in range(RECORDS)]
    fill(kafka, read, orders)
    (tmp_path / "job.py").write_text(JOB)
    for life, workers in enumerate((1, 3, 2, 1, 3)):
        last = life == 4
        arguments = [kafka.bootstrap, read, written, f"{tmp_path}/snapshots", f"{workers}", "0" if last else "0.002"]
        with subprocess.Popen([sys.executable, str(tmp_path / "job.py"), *arguments], cwd=ROOT) as process:
            if not last:
                seen = len(kafka.visible(written))
                wait_until(partial(has_more, kafka, written, seen, process), "a snapshot has published rows")
                assert process.poll() is None, "the job ended by itself"
                process.kill()
        assert process.returncode == (0 if last else -signal.SIGKILL)
    found = Counter(kafka.visible(written))
    assert found == Counter(totals_of(orders)), "each total once"


def fill(kafka: Broker, topic: str, orders: list[dict[str, Any]]) -> None:
    """Write each customer's orders to one partition, so that their order is known."""
    producer = kafka.client("Producer", linger_ms=5)
    for order in orders:
        producer.produce(topic, json.dumps(order).encode(), partition=int(order["customer"][1:]) % PARTITIONS)
    assert producer.flush(30) == 0


def has_more(kafka: Broker, topic: str, seen: int, process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None or len(kafka.visible(topic)) > seen


def totals_of(orders: list[dict[str, Any]]) -> Iterator[int]:
    """Yield the running total after each order."""
    totals: Counter[str] = Counter()
    for order in orders:
        totals[order["customer"]] += order["amount"]
        yield totals[order["customer"]]
