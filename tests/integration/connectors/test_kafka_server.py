"""Both ends of Kafka on a broker that is none of ours, as noida-db is one: its rules, our contracts, and kills."""

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

from malstrom_py.connectors.kafka.client import Cluster
from malstrom_py.connectors.kafka.producing import create_topic
from tests.kafka_broker import real
from tests.kafka_broker.using import transactions
from tests.servers import kafka_server, wait_until
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


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with kafka_server() as server:
        yield f"127.0.0.1:{server.port}"


def test_both_ends_keep_their_contracts(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malstrom_py.connectors.kafka.reader._WAIT_S", 0.01)  # a part that is closed waits for a poll
    real.main(bootstrap, cuts_max=3)


def test_aborted_and_open_rows_are_hidden_and_an_older_producer_is_fenced(bootstrap: str) -> None:
    from confluent_kafka import KafkaException

    create_topic(Cluster("test", bootstrap, {}), "rules", 1, {})

    def send(producer: Any, value: int) -> None:
        producer.begin_transaction()
        producer.produce("rules", str(value).encode(), partition=0)
        assert producer.flush(10) == 0

    with transactions(bootstrap, "rules") as old:
        send(old, 1)
        old.commit_transaction(10)
        send(old, 2)
        old.abort_transaction(10)
        send(old, 3)
        assert real.visible(bootstrap, "rules") == [1]
        with transactions(bootstrap, "rules") as new:
            with pytest.raises(KafkaException):
                old.commit_transaction(10)
            send(new, 4)
            new.commit_transaction(10)
    assert real.visible(bootstrap, "rules") == [1, 4]


def test_s7_a_job_that_is_killed_four_times_and_resumed_at_other_sizes_is_exact(bootstrap: str, tmp_path: Path) -> None:
    for topic, partitions in (("orders", PARTITIONS), ("totals", 1)):
        create_topic(Cluster("test", bootstrap, {}), topic, partitions, {})
    orders = [{"customer": f"c{number % 50}", "amount": number} for number in range(RECORDS)]
    fill(bootstrap, orders)
    (tmp_path / "job.py").write_text(JOB)
    for life, workers in enumerate((1, 3, 2, 1, 3)):
        last = life == 4
        arguments = [bootstrap, "orders", "totals", str(tmp_path / "snapshots"), str(workers), "0" if last else "0.002"]
        with subprocess.Popen([sys.executable, str(tmp_path / "job.py"), *arguments], cwd=ROOT) as process:
            if not last:
                seen = len(real.visible(bootstrap, "totals"))
                wait_until(partial(has_more, bootstrap, seen, process), "a snapshot has published rows")
                assert process.poll() is None, "the job ended by itself"
                process.kill()
        assert process.returncode == (0 if last else -signal.SIGKILL)
    found = Counter(real.visible(bootstrap, "totals"))
    assert found == Counter(totals_of(orders)), "each total once"


def fill(bootstrap: str, orders: list[dict[str, Any]]) -> None:
    """Write each customer's orders to one partition, so that their order is known."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for order in orders:
        producer.produce("orders", json.dumps(order).encode(), partition=int(order["customer"][1:]) % PARTITIONS)
    assert producer.flush(30) == 0


def has_more(bootstrap: str, seen: int, process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None or len(real.visible(bootstrap, "totals")) > seen


def totals_of(orders: list[dict[str, Any]]) -> Iterator[int]:
    """Yield the running total after each order."""
    totals: Counter[str] = Counter()
    for order in orders:
        totals[order["customer"]] += order["amount"]
        yield totals[order["customer"]]
