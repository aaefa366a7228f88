"""A committer in a process that is killed, or stopped past its replacement and continued: each row is published "
"once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from malstrom_py import sinks
from malstrom_py.data.batch import Batch
from malstrom_py.testing.contracts.sinks import context_of, worker_of
from tests.kafka_broker.server import ModelBroker
from tests.kafka_broker.using import new_topic, visible
from tests.servers import wait_until
from tests.tree import ROOT

COMMITTER = """
import sys, cloudpickle
sink, context, payload = cloudpickle.loads(open(sys.argv[1], "rb").read())
try:
    sink.commit(context, [payload])
except BaseException as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""

REQUESTS = ("InitProducerId", "AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")


@contextmanager
def committer(arguments: tuple[Any, ...], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "arguments").write_bytes(cloudpickle.dumps(arguments))
    process = subprocess.Popen([sys.executable, "-c", COMMITTER, str(folder / "arguments")], cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait(20)


@pytest.mark.long
@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_s7_a_process_that_commits(kafka: ModelBroker, tmp_path: Path, how: str, request_name: str) -> None:
    topic = new_topic(kafka)
    sink: Any = sinks.Kafka(kafka.bootstrap, topic, exactly_once=True)
    sink.recover(context_of(1), [])
    first = context_of(1, final=False)
    writer = sink.open(worker_of())
    writer.write(Batch([1, 2, 3]))
    payload = writer.pre_commit(first)
    writer.close()
    seen: list[str] = []
    with committer((sink, first, payload), tmp_path) as process:

        def stop(name: str) -> None:
            if name == request_name and not seen:
                seen.append(name)
                process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)

        kafka.before = stop
        try:
            wait_until(lambda: bool(seen) or process.poll() is not None, "the request comes, or the process ends")
        finally:
            kafka.before = lambda _name: None
        assert seen
        other = cloudpickle.loads(cloudpickle.dumps(sink))
        other.recover(context_of(2, incarnation=2), [first.snapshot])
        other.commit(first, [payload])
        assert visible(kafka, topic) == [1, 2, 3]
        if how == "stopped":
            process.send_signal(signal.SIGCONT)
        wait_until(lambda: process.poll() is not None, "the process ends")
    assert visible(kafka, topic) == [1, 2, 3]
