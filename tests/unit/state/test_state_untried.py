"""State that cannot be stored: with snapshots it is reported with the first state that is kept, not by a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import CodecError


class Plain:
    """A class that no snapshot can store."""


@dataclass
class Unregistered:
    """One that a snapshot can store once the job knows it."""

    number: int = 0


def keyed(job: mp.Job, numbers: Any) -> Any:
    return job.source("numbers", sources.Memory(numbers)).key_by("parity", lambda number: number % 2)


def run(step: Any, tmp_path: Path, numbers: Any = range(100), *, kept: bool = True) -> list[Any]:
    job, out = mp.Job("states"), sinks.Memory()
    step(keyed(job, numbers)).sink("out", out)
    # Nothing but the end of the job makes a snapshot.
    snapshots = mp.Snapshots(tmp_path, interval_s=None) if kept else None
    mp.run(job, batch=mp.Batching(rows_max=1), snapshots=snapshots)
    return out.items


class Batches(mp.KeyedLogic[Any, Any, Any, Any]):
    def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
        STATES.append(values)
        state[keys[0]] = Plain()


STATES: list[Any] = []


def kept(value: Any, state: Any) -> Any:
    STATES.append(value)
    return state


STEPS = {
    "stateful_map": lambda s: s.stateful_map("keep", lambda key, value, state: (value, kept(value, Plain()))),
    "stateful_flat_map": lambda s: s.stateful_flat_map("keep", lambda key, value, state: ([], kept(value, Plain()))),
    "stateful_op": lambda s: s.stateful_op("keep", lambda message, state, output: kept(message.value, Plain())),
    "stateful_op of batches": lambda s: s.stateful_op("keep", Batches()),
    "reduce": lambda s: s.map("make", lambda value: kept(value, Plain())).reduce("keep", lambda one, other: other),
    "fold": lambda s: s.fold("keep", default=int, fn=lambda state, value: kept(value, Plain())),
    "collect": lambda s: s.map("make", lambda value: kept(value, Plain())).collect("keep", size=3),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_first_state_is_tried_when_it_is_kept(name: str, tmp_path: Path) -> None:
    STATES.clear()
    with pytest.raises(CodecError, match=r"step 'keep' for key 0: a value of type .*Plain cannot be stored.*Make it a"):
        run(STEPS[name], tmp_path)
    assert len(STATES) == 1, "the first record was the last"


@pytest.mark.parametrize("name", STEPS)
def test_without_snapshots_state_may_be_anything(name: str, tmp_path: Path) -> None:
    run(STEPS[name], tmp_path, range(2), kept=False)


def test_the_remedy_of_a_dataclass_is_to_register_it(tmp_path: Path) -> None:
    with pytest.raises(
        CodecError, match=r"Unregistered cannot be stored: .*job.register_type\(Unregistered\)"
    ) as caught:
        run(lambda s: s.stateful_map("keep", lambda key, value, state: (value, Unregistered(value))), tmp_path)
    assert (caught.value.step, caught.value.key) == ("keep", 0)


def test_what_fails_on_its_first_records_is_tried_with_the_first_that_it_keeps(tmp_path: Path) -> None:
    STATES.clear()

    def late(key: int, value: int, state: Any) -> tuple[int, Any]:
        return value, None if value < 5 else kept(value, Plain())

    with pytest.raises(CodecError, match="for key 1"):
        run(lambda s: s.stateful_map("keep", late), tmp_path)
    assert STATES == [5]


def test_state_that_can_no_longer_be_stored_later_is_reported_by_the_snapshot(tmp_path: Path) -> None:
    def grow(key: int, value: int, state: Any) -> tuple[int, Any]:
        return value, value if value < 50 else Plain()

    with pytest.raises(CodecError, match=r"step 'keep' for key 0: a value of type .*Plain cannot be stored"):
        run(lambda s: s.stateful_map("keep", grow), tmp_path)
    assert run(lambda s: s.stateful_map("keep", grow), tmp_path / "other", range(50)) == list(range(50))
