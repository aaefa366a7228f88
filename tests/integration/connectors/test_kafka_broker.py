"""The model broker keeps to Kafka's rules of transactions, by the judgement of kafka-python, an independent client."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.kafka_broker.server import ModelBroker
from tests.kafka_broker.using import new_topic, transactions, visible
from tests.tree import ROOT


def test_a_second_client_finds_the_rules_of_transactions_kept(kafka: ModelBroker) -> None:
    first, second = new_topic(kafka), new_topic(kafka)
    command = [sys.executable, "-m", "tests.kafka_broker.second_client", kafka.bootstrap, first, second]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    ended, fenced = json.loads(done.stdout)
    assert ended == {"committed": ["1", "3"], "all": ["1", "2", "3", "4"], "offset": 33}
    assert kafka.state.topics[first].logs[0].end == 8, "four rows and four ends of transactions"
    assert visible(kafka, first) == [1, 3], "the model's own reading is that of the client"
    assert fenced.pop("refused"), "an old epoch is refused"
    assert fenced == {"waiting": [], "after": ["between"], "end": ["between", "new"]}


def test_librdkafka_is_fenced_too(kafka: ModelBroker) -> None:
    from confluent_kafka import KafkaException

    topic = new_topic(kafka)
    with transactions(kafka.bootstrap, topic) as old:
        old.begin_transaction()
        old.produce(topic, b"1", partition=0)
        with transactions(kafka.bootstrap, topic) as new:
            with pytest.raises(KafkaException):
                old.commit_transaction(10)
            new.begin_transaction()
            new.produce(topic, b"2", partition=0)
            new.commit_transaction(10)
    assert visible(kafka, topic) == [2]
