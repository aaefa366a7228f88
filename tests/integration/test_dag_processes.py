"""A DAG across processes: what one has checkpointed another restores; and what running one imports."""

from __future__ import annotations

from pathlib import Path

import pytest

import malstrom_py as mp
from tests.integration.commands import python

PROGRAM = """
import sys
from pathlib import Path

import malstrom_py as mp
from malstrom_py.dag import DagBuilder, DagExecutor


class Sums(mp.KeyedLogic):
    def on_data(self, message, key_state, output):
        output.set_timer(message.key, 100)
        return (key_state or 0) + message.value

    def on_timer(self, key, time, key_state, output):
        output.emit(key, key_state, time)
        return None


dag = DagBuilder().source("in").operator("sums").connect("in", "sums").sink_for("sums", "out").build()
executor = DagExecutor.from_dag(dag)
executor.register_operator("sums", Sums())
snapshot = Path(sys.argv[1])
if snapshot.exists():
    executor.restore(snapshot.read_bytes())
    executor.process_watermark("in", 100)
    print(executor.take_sink_outputs("out", messages=True))
else:
    for key, value in [("a", 1), ("b", 10), (("c", None), 5), ("a", 2)]:
        executor.process_event("in", mp.DataMessage(key, value, 50))
    executor.process_watermark("in", 60)
    executor.inject_events("sums", [mp.DataMessage("b", 20, 70)])
    snapshot.write_bytes(executor.checkpoint())
"""


def run(*arguments: str) -> str:
    done = python("-c", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_what_one_process_has_checkpointed_another_restores(tmp_path: Path) -> None:
    assert run(PROGRAM, str(tmp_path / "snapshot")) == ""
    rung = [mp.DataMessage("a", 3, 100), mp.DataMessage("b", 30, 100), mp.DataMessage(("c", None), 5, 100)]
    assert run(PROGRAM, str(tmp_path / "snapshot")) == f"{rung}\n"


def test_equal_executors_checkpoint_to_equal_bytes_in_every_process(tmp_path: Path) -> None:
    for name in ("one", "other"):
        run(PROGRAM, str(tmp_path / name))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_building_and_running_a_graph_imports_neither_pyarrow_nor_polars() -> None:
    code = """
import sys
from malstrom_py.dag import DagBuilder, DagExecutor
executor = DagExecutor.from_dag(DagBuilder().source("in", int).sink_for("in", "out", int).build())
executor.process_event("in", 5)
executor.restore(executor.checkpoint())
print(executor.take_sink_outputs("out"), sorted({"pyarrow", "polars", "rich", "typer"} & set(sys.modules)))
"""
    assert run(code) == "[5] []\n"
