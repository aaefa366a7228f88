"""The benchmarks on Ray run, check what they count, and print what they promise. How fast it went is not asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.macro.arrivals import BUCKET_NS, Arrivals, Seen
from bench.macro.feeding import PARTS, Paced
from bench.macro.keeping import SLOTS, OnShelf, Shelf, payload_of, read_states
from malstrom_py.data.batch import Batch
from malstrom_py.rescale.moves.placement import first_table
from malstrom_py.rescale.slots import slot_of
from malstrom_py.sources import Part
from malstrom_py.worker_context import WorkerId, WorkerInfo


def test_a_paced_part_gives_every_key_first_and_goes_on_from_where_it_was(tmp_path: Path) -> None:
    source = Paced(keys=40, rate=4_000_000, stamps="due", leave_in=str(tmp_path))
    part = source.build_part(Part("part-1"), None)
    keys = [key for _ in range(3) for key, _ in part.poll(4) or []]
    assert keys == [f"user-{number:06d}" for number in range(1, 40, PARTS)]
    first = rows_of(part, 25)
    part.close()
    again = Paced(keys=40, rate=4_000_000, stamps="due", go_on_from=str(tmp_path)).build_part(Part("part-1"), None)
    rows = first + rows_of(again, 25)
    assert [key for key, _ in rows[:40]] == keys * 4, "all keys in turn"
    stamps = [stamp for _, stamp in rows]
    assert stamps == sorted(stamps)


def rows_of(part: Any, least: int) -> list[tuple[str, int]]:
    rows: list[tuple[str, int]] = []
    while len(rows) < least:
        rows += part.poll(10) or []
    return rows


def test_what_one_job_leaves_on_the_shelf_is_found_by_the_workers_that_own_it(tmp_path: Path) -> None:
    left = OnShelf(Shelf(None, str(tmp_path), 1, 2))
    keys = [f"user-{number:06d}" for number in range(5000)]
    left.states = {key: (number, payload_of(key)) for number, key in enumerate(keys)}
    left.close()
    table = first_table(SLOTS, range(2))
    for owner in range(2):
        owned = {key for key in keys if table[slot_of(key, SLOTS)] == owner}
        assert read_states(tmp_path, owner) == {key: left.states[key] for key in owned}
    found = OnShelf(Shelf(str(tmp_path), None, 2, 2))
    assert found.found(keys[4321]) == (4321, payload_of(keys[4321]))


def test_rows_are_counted_in_the_bucket_in_which_they_came_and_as_old_as_they_were(tmp_path: Path) -> None:
    writer = Arrivals(str(tmp_path), stamped=True).build(WorkerInfo("job", "out", WorkerId(3)))
    writer.write(Batch([0, 0, 0]))
    writer.close()
    seen = Seen(tmp_path)
    since_ns, until_ns = seen.span_ns
    assert (seen.rows, until_ns - since_ns) == (3, BUCKET_NS)
    (first_ns,) = seen.first_ns[3]
    assert since_ns <= first_ns < until_ns
    assert seen.age_ms(1.0, since_ns, until_ns) == first_ns / 1e6, "the largest age is exact"
    assert first_ns / 1e6 * 0.95 <= seen.age_ms(0.5, since_ns, until_ns) <= first_ns / 1e6
    assert seen.silence_s(since_ns - 5 * BUCKET_NS, until_ns) == 5 * BUCKET_NS / 1e9
    assert json.loads(next(tmp_path.glob("*.json")).read_text())["worker"] == 3
