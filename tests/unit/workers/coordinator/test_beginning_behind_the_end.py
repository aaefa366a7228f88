"""A finished job whose source reads new input resumes after its end, with its state and the new parts only."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.errors import SourceError
from malstrom_py.sinks.output_record import read_output
from malstrom_py.sources.base import Part

SEEDS = 12


def wrote(folder: Path, day: int, keys: str = "abc", rows: int = 12) -> None:
    folder.mkdir(exist_ok=True)
    lines = [f"{keys[n % len(keys)]},{day * 100 + n},{n + 1}\n" for n in range(rows)]
    (folder / f"day-{day}.csv").write_text("".join(["key,at,n\n", *lines]))


def totals(
    folder: Path, *, new_files: bool = True, each: Any = lambda row: row, split_bytes: int | None = 40
) -> mp.Job:
    """Running totals by key, each row of output with the row it is of."""
    job = mp.Job("totals")
    read = job.source(
        "in",
        sources.Files(folder / "in" / "*.csv", new_files=new_files, newlines_in_values=False, split_bytes=split_bytes),
    )
    keyed = read.map("each", each).key_by("key", "key")

    def add(key: str, row: Mapping[str, Any], total: int) -> tuple[dict[str, Any], int]:
        return {"row": [key, row["at"]], "n": row["n"], "total": total + row["n"]}, total + row["n"]

    keyed.stateful_map("total", add, default=int).sink("out", sinks.Files(folder / "out", format="json"))
    return job


def run(job: mp.Job, folder: Path, workers: int = 1, **options: Any) -> mp.RunResult:
    kept = mp.Snapshots(str(folder / "kept"), interval_s=None)
    return mp.InProcess(workers, snapshots=kept, checks=True, **{"restart": "never", **options}).run(job)


def check(folder: Path, days: Sequence[int], rows: int = 12) -> None:
    """Every row of ``days`` is there once, and each key's totals are those of all its rows, one after the other."""
    lines = [line for path in (folder / "out").glob("*.json") for line in path.read_text().splitlines()]
    written = [json.loads(line) for line in lines]
    expected = {("abc"[n % 3], day * 100 + n): n + 1 for day in days for n in range(rows)}
    assert len(written) == len(expected)
    assert {tuple(row["row"]): row["n"] for row in written} == expected
    for key in "abc":
        ordered = sorted((row["total"], row["n"]) for row in written if row["row"][0] == key)
        total = 0
        for reached, n in ordered:
            total += n
            assert reached == total


def test_each_run_reads_the_files_that_are_new_and_state_goes_on(tmp_path: Path) -> None:
    for day, workers in enumerate((1, 3, 2, 4), 1):
        wrote(tmp_path / "in", day)
        before = set((tmp_path / "out").glob("*.json"))
        result = run(totals(tmp_path), tmp_path, workers)
        assert (result.read, result.written) == (12, 12)
        assert before < set((tmp_path / "out").glob("*.json"))
        check(tmp_path, range(1, day + 1))


def test_the_record_beside_the_output_names_the_files_of_all_runs_until_the_job_begins_anew(tmp_path: Path) -> None:
    def visible() -> set[str]:
        return {path.name for path in (tmp_path / "out").glob("*.json")}

    def recorded() -> tuple[str, ...]:
        return tuple(read_output(tmp_path / "out", "totals").outputs["out"].files)

    for day in (1, 2, 3):
        wrote(tmp_path / "in", day)
        assert run(totals(tmp_path), tmp_path, day).read == 12
        assert sorted(recorded()) == sorted(visible())
        assert run(totals(tmp_path, new_files=False), tmp_path).resumed_finished
        assert run(totals(tmp_path), tmp_path).read == 0
        assert sorted(recorded()) == sorted(visible())
    before = visible()
    assert run(totals(tmp_path), tmp_path, resume="none").read == 36
    assert sorted(recorded()) == sorted(visible() - before)


def test_the_record_of_a_folder_that_a_spark_sink_appends_to_names_the_files_of_all_runs(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        wrote(tmp_path / "in", day)
        job = mp.Job("appends")
        read = job.source("in", sources.Files(tmp_path / "in" / "*.csv", new_files=True))
        read.sink("out", sinks.Spark(tmp_path / "out", mode="append"))
        assert run(job, tmp_path).read == 12
        files = read_output(tmp_path / "out", "appends").outputs["out"].files
        assert sorted(files) == sorted(path.name for path in (tmp_path / "out").glob("*.parquet"))
        assert len(files) == day


def test_a_run_with_nothing_new_reads_nothing_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrote(tmp_path / "in", 1)
    run(totals(tmp_path), tmp_path)
    for _ in range(3):
        caplog.clear()
        result = run(totals(tmp_path), tmp_path, 2)
        assert (result.read, result.written, result.snapshots) == (0, 0, 1)
        assert "no new input since snapshot" in caplog.text
    wrote(tmp_path / "in", 2)
    run(totals(tmp_path), tmp_path)
    check(tmp_path, [1, 2])


def test_without_being_asked_a_finished_job_stays_finished(tmp_path: Path) -> None:
    wrote(tmp_path / "in", 1)
    run(totals(tmp_path), tmp_path)
    wrote(tmp_path / "in", 2)
    assert run(totals(tmp_path, new_files=False), tmp_path).read == 12
    check(tmp_path, [1])
    assert run(totals(tmp_path), tmp_path).read == 12
    check(tmp_path, [1, 2])


def test_files_that_have_gone_are_no_error_and_are_remembered_where_none_is_left(tmp_path: Path) -> None:
    wrote(tmp_path / "in", 1)
    run(totals(tmp_path), tmp_path)
    (tmp_path / "in" / "day-1.csv").rename(tmp_path / "day-1.csv")
    assert run(totals(tmp_path), tmp_path).read == 0  # the disk may not be there just now
    (tmp_path / "day-1.csv").rename(tmp_path / "in" / "day-1.csv")
    assert run(totals(tmp_path), tmp_path).read == 0
    (tmp_path / "in" / "day-1.csv").unlink()
    wrote(tmp_path / "in", 2)
    assert run(totals(tmp_path), tmp_path).read == 12
    check(tmp_path, [1, 2])


def test_what_is_remembered_is_no_more_than_the_files_that_are_there(tmp_path: Path) -> None:
    sizes = []
    for day in range(1, 8):
        wrote(tmp_path / "in", day)
        run(totals(tmp_path, split_bytes=None), tmp_path)
        (tmp_path / "in" / f"day-{day}.csv").unlink()
        manifest = json.loads(max((tmp_path / "kept" / "totals").rglob("log/*")).read_text().splitlines()[0])
        sizes.append(len(json.dumps(manifest["sources"])))
    assert max(sizes[2:]) < sizes[1] * 1.2


@pytest.mark.parametrize("change", ["grown", "other bytes"])
def test_a_file_that_was_changed_after_it_was_read_is_an_error_that_names_it(tmp_path: Path, change: str) -> None:
    wrote(tmp_path / "in", 1)
    run(totals(tmp_path), tmp_path)
    path = tmp_path / "in" / "day-1.csv"
    before = path.read_text()
    path.write_text(before + "a,1,1\n" * 40 if change == "grown" else before.replace("a,100,1", "a,100,9"))
    with pytest.raises(SourceError, match=r"day-1\.csv was changed after an earlier run had read it") as failed:
        run(totals(tmp_path), tmp_path, restart=mp.Restart())
    assert failed.value.lasting
    path.write_text(before)
    os.utime(path, ns=(1, 1))
    assert run(totals(tmp_path), tmp_path).read == 0  # only the time differs


def test_another_name_or_way_to_a_file_that_was_read_does_not_make_it_new(tmp_path: Path) -> None:
    wrote(tmp_path / "in", 1)
    run(totals(tmp_path), tmp_path)
    (tmp_path / "in" / "a.csv").symlink_to("day-1.csv")
    (tmp_path / "other").symlink_to("in")
    assert run(totals(tmp_path), tmp_path).read == 0
    assert run(totals(tmp_path, split_bytes=1 << 20), tmp_path).read == 0


def test_a_link_whose_file_has_gone_is_a_file_that_has_gone(tmp_path: Path) -> None:
    wrote(tmp_path / "in", 1)
    wrote(tmp_path / "else", 2)
    (tmp_path / "in" / "current.csv").symlink_to(tmp_path / "else" / "day-2.csv")
    assert run(totals(tmp_path), tmp_path).read == 24
    (tmp_path / "else" / "day-2.csv").unlink()
    for _ in range(2):  # remembered, and forgotten
        assert run(totals(tmp_path), tmp_path).read == 0
    wrote(tmp_path / "else", 3)
    (tmp_path / "in" / "current.csv").unlink()
    (tmp_path / "in" / "current.csv").symlink_to(tmp_path / "else" / "day-3.csv")
    assert run(totals(tmp_path), tmp_path).read == 12
    check(tmp_path, [1, 2, 3])


def test_a_pattern_that_is_a_link_whose_file_has_gone_is_no_error(tmp_path: Path) -> None:
    wrote(tmp_path / "else", 1)
    (tmp_path / "in").symlink_to("else")
    (tmp_path / "current.csv").symlink_to(tmp_path / "else" / "day-1.csv")

    def read() -> int:
        job = mp.Job("linked")
        job.source("in", sources.Files(tmp_path / "current.csv", new_files=True)).sink("out", sinks.Memory())
        return run(job, tmp_path).read

    assert read() == 12
    (tmp_path / "else" / "day-1.csv").unlink()
    assert (read(), read()) == (0, 0)


@pytest.mark.parametrize("split_bytes", [40, None])
def test_a_file_that_was_renamed_is_not_read_again(tmp_path: Path, split_bytes: int | None) -> None:
    for day in (1, 2):
        wrote(tmp_path / "in", day)
    run(totals(tmp_path, split_bytes=split_bytes), tmp_path)
    (tmp_path / "in" / "day-1.csv").rename(tmp_path / "in" / "done-1.csv")
    for day in (3, 4, 5):
        wrote(tmp_path / "in", day)
        assert run(totals(tmp_path, split_bytes=split_bytes), tmp_path, 2).read == 12
    (tmp_path / "in" / "done-1.csv").rename(tmp_path / "in" / "0.csv")
    assert run(totals(tmp_path, split_bytes=split_bytes), tmp_path).read == 0
    check(tmp_path, [1, 2, 3, 4, 5])
    # Another one of its first name would have its positions.
    wrote(tmp_path / "in", 6)
    (tmp_path / "in" / "day-6.csv").rename(tmp_path / "in" / "day-1.csv")
    with pytest.raises(SourceError, match=r"day-1\.csv was changed after an earlier run had read it"):
        run(totals(tmp_path, split_bytes=split_bytes), tmp_path)
    (tmp_path / "in" / "day-1.csv").rename(tmp_path / "in" / "day-6.csv")
    assert run(totals(tmp_path, split_bytes=split_bytes), tmp_path).read == 12
    check(tmp_path, [1, 2, 3, 4, 5, 6])
    (tmp_path / "in" / "0.csv").unlink()
    assert run(totals(tmp_path, split_bytes=split_bytes), tmp_path).read == 0


def test_a_copy_of_a_file_is_a_file_of_its_own_and_so_is_one_of_the_same_content_made_later(tmp_path: Path) -> None:
    for day in (1, 2):
        wrote(tmp_path / "in", day)
    run(totals(tmp_path), tmp_path)
    first = tmp_path / "in" / "day-1.csv"
    shutil.copy2(first, tmp_path / "in" / "copy.csv")
    assert run(totals(tmp_path), tmp_path).read == 12
    (tmp_path / "in" / "again.csv").write_bytes(first.read_bytes())
    first.unlink()
    assert run(totals(tmp_path), tmp_path).read == 12
    (tmp_path / "in" / "again.csv").rename(tmp_path / "in" / "one.csv")
    shutil.copy2(tmp_path / "in" / "one.csv", tmp_path / "in" / "two.csv")  # one of them is it
    assert run(totals(tmp_path), tmp_path).read == 12
    assert run(totals(tmp_path), tmp_path).read == 0


def test_new_files_have_the_types_that_were_found_first(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "day-1.csv").write_text("key,at,n\na,1,1.5\n")
    run(totals(tmp_path), tmp_path)
    (tmp_path / "in" / "day-1.csv").unlink()
    (tmp_path / "in" / "day-2.csv").write_text("key,at,n\na,2,2\n")
    run(totals(tmp_path), tmp_path)
    (tmp_path / "in" / "day-3.csv").write_text("key,n\na,2\n")
    with pytest.raises(SourceError, match="columns"):
        run(totals(tmp_path), tmp_path)
    lines = [line for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["n"] for line in lines) == [1.5, 2.0]


def test_a_job_that_was_drained_in_the_middle_reads_the_rest_the_next_time(tmp_path: Path) -> None:
    for day in (1, 2):
        wrote(tmp_path / "in", day, rows=6_000)
    runtime = mp.InProcess(
        2, snapshots=mp.Snapshots(str(tmp_path / "kept"), interval_s=None), batch=mp.Batching(rows_max=20)
    )
    handle = runtime.start(totals(tmp_path, split_bytes=None), control=False)
    handle.stop(drain=True)
    read = handle.wait().read
    wrote(tmp_path / "in", 3, rows=6_000)
    assert read + run(totals(tmp_path, split_bytes=None), tmp_path, 3).read == 18_000
    check(tmp_path, [1, 2, 3], rows=6_000)


def test_a_run_that_fails_goes_back_to_the_end_of_the_one_before(tmp_path: Path) -> None:
    wrote(tmp_path / "in", 1)
    run(totals(tmp_path), tmp_path)
    wrote(tmp_path / "in", 2)
    calls = count()

    def fails_once(row: Any) -> Any:
        if next(calls) == 5:
            raise ValueError("once")
        return row

    result = run(totals(tmp_path, each=fails_once), tmp_path, restart=mp.Restart(backoff_s=0.01))
    assert result.read == 12
    check(tmp_path, [1, 2])


class FailsAtTheEnd(sinks.Files):
    """Cannot commit what belongs to the end of the job, once."""

    failed = False

    def commit(self, context: Any, payloads: Sequence[bytes]) -> None:
        if context.final and not self.failed:
            self.failed = True
            raise OSError("not now")
        super().commit(context, payloads)


def test_a_run_whose_end_stands_but_was_not_committed_is_not_gone_on_with_by_its_restart(tmp_path: Path) -> None:
    """It commits, and returns what the run has done: that files are new is for the next start."""
    for day in (1, 2):
        wrote(tmp_path / "in", day)
        job = mp.Job("ends")
        read = job.source("in", sources.Files(tmp_path / "in" / "*.csv", new_files=True))
        read.sink("out", FailsAtTheEnd(tmp_path / "out", format="json"))
        result = run(job, tmp_path, restart=mp.Restart(backoff_s=0.01))
        assert (result.read, result.written) == (12, 12)
        lines = [line for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
        assert len(lines) == len(set(lines)) == 12 * day


def test_event_time_begins_again_and_timers_of_the_next_run_fire_in_it(tmp_path: Path) -> None:
    """All timers have fired at the end of the first run; what the second sets fires in its own time."""
    fired: list[tuple[str, int]] = []
    frontiers: list[int] = []

    def job() -> mp.Job:
        made = mp.Job("timers")
        read = made.source("in", sources.Files(tmp_path / "in" / "*.csv", new_files=True))
        on_time, late = read.assign_timestamps("at", "at").generate_epochs("epochs", mp.limit_out_of_orderness(0))
        late.sink("late", sinks.Callable(lambda row: fired.append(("late", row["at"]))))

        class Wake(mp.KeyedLogic[str, Any, int, int]):
            def on_data(self, message: Any, key_state: int | None, output: Any) -> int | None:
                output.set_timer(message.key, message.timestamp + 1)
                output.send(message)
                return (key_state or 0) + 1

            def on_timer(self, key: str, time: int, key_state: int | None, output: Any) -> int | None:
                fired.append((key, time))
                return key_state

        woken = on_time.key_by("key", "key").stateful_op("wake", Wake())
        woken.inspect_frontier("frontier", frontiers.append).sink("out", sinks.Memory())
        return made

    wrote(tmp_path / "in", 5, rows=3)
    run(job(), tmp_path)
    assert (fired, frontiers[-1]) == ([("a", 501), ("b", 502), ("c", 503)], MAX_EPOCH)
    fired.clear()
    frontiers.clear()
    assert run(job(), tmp_path, 2).read == 0
    assert (fired, frontiers) == ([], [])  # the end was already sent, and is not sent again
    wrote(tmp_path / "in", 1, rows=3)  # older than what the first run has read: of another part, and not late
    assert run(job(), tmp_path).read == 3
    assert fired == [("a", 101), ("b", 102), ("c", 103)]
    assert frontiers[0] < 200
    assert frontiers[-1] == MAX_EPOCH


class Grows:
    """A source of a user that reads what is new: parts by name, each of some numbers."""

    reads_new = True

    def __init__(self, parts: Mapping[str, int]) -> None:
        self._parts = parts
        self.known: Mapping[Part, Any] = {}

    def list_parts(self) -> Sequence[Part]:
        return [Part(name) for name in self._parts]

    def list_parts_after(self, known: Mapping[Part, Any]) -> Sequence[Part]:
        self.known = dict(known)
        return self.list_parts()

    def has_read(self, position: Any) -> bool:
        return True

    def build_part(self, part: Part, state: Any) -> Any:
        numbers = sources.Memory(range(self._parts[part]))
        return numbers.build_part(numbers.list_parts()[0], state)


def test_a_source_of_ones_own_may_grow_too(tmp_path: Path) -> None:
    def total(source: Any) -> tuple[int, list[Any]]:
        job, out = mp.Job("own"), sinks.Memory()
        job.source("in", source).key_by("all", lambda n: "all").count("n").sink("out", out)
        return run(job, tmp_path).read, out.items

    assert total(Grows({"a": 3})) == (3, [1, 2, 3])
    later = Grows({"a": 3, "b": 2})
    assert total(later) == (2, [4, 5])
    assert list(later.known) == ["a"]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_simulated_runs_one_after_the_other_leave_every_row_once(tmp_path: Path, seed: int) -> None:
    """With crashes and rescales as the seed decides, also between the snapshot that ends a run and its commit."""
    kept = mp.Snapshots(str(tmp_path / "kept"), interval_s=0.01)
    for day in (1, 2, 3):
        wrote(tmp_path / "in", day)
        mp.Simulation(1 + (seed + day) % 3, seed=seed * 7 + day, snapshots=kept).run(totals(tmp_path))
    check(tmp_path, [1, 2, 3])


def test_follow_and_new_files_are_one_or_the_other() -> None:
    with pytest.raises(mp.PlanError, match="leave out new_files"):
        sources.Files("in/*.csv", follow=True, new_files=True)
