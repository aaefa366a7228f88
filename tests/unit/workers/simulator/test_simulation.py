"""The simulator: the same seed the same run, which events it permits, and how it reports an error."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.snapshot.store import MemoryStore


def counting(out: Any, *, parts: int = 3, rows: int = 60) -> mp.Job:
    job = mp.Job("counting", slots=8)
    numbers = job.source("in", sources.Memory(range(rows), parts=parts)).key_by("rest", lambda n: n % 5)
    numbers.count("n").sink("out", out)
    return job


WANTED = {rest: list(range(1, 13)) for rest in range(5)}


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (mp.Simulation(workers=2, seed=4).run(counting(sinks.Memory())) for _ in range(2))
    assert first == second
    assert first.trace != mp.Simulation(workers=2, seed=5).run(counting(sinks.Memory())).trace


def test_as_many_rescales_as_asked_for() -> None:
    still = mp.Simulation(workers=2, seed=1, rescales=0, crashes=0).run(counting(sinks.Memory()))
    assert not {"keys moved", "part moved", "rescale coalesced"} & still.hits.keys()
    moved = mp.Simulation(workers=2, seed=1, rescales=4, crashes=0).run(counting(sinks.Memory()))
    assert moved.hits["keys moved"] > 0


def test_s6_a_crash_begins_the_job_afresh_with_empty_sinks() -> None:
    out = sinks.Memory()
    result = mp.Simulation(workers=2, seed=1, crashes=2, snapshots=False).run(counting(out))
    assert result.incarnations == 3
    assert out.by_key == WANTED


def kept() -> mp.Snapshots:
    return mp.Snapshots(MemoryStore(), interval_s=0.001, chain_max=1)


@pytest.mark.parametrize("seed", range(20))
def test_s6_a_crash_goes_back_to_the_last_snapshot(seed: int) -> None:
    out = sinks.Memory()
    mp.Simulation(workers=2, seed=seed, crashes=2, snapshots=kept()).run(counting(out))
    assert out.by_key == WANTED


@pytest.mark.parametrize("seed", [33, 86, 97])
def test_s2_a_worker_that_leaves_just_after_a_snapshot_was_wanted_packs_nothing_for_it(seed: int) -> None:
    job, out = mp.Job("leaving"), sinks.Memory()
    job.source("in", sources.Memory(range(400), parts=3)).sink("out", out)
    snapshots = mp.Snapshots(MemoryStore(), interval_s=0.01)
    mp.Simulation(workers=2, seed=seed, rescales=2, crashes=0, snapshots=snapshots).run(job)
    assert sorted(out.items) == list(range(400))


def test_s6_what_is_read_again_is_what_came_behind_the_last_snapshot() -> None:
    reads: list[int] = []

    def noted(number: int) -> int:
        reads.append(number)
        return number

    hits: Counter[str] = Counter()
    for seed in range(10):
        job = mp.Job("noted", slots=8)
        numbers = job.source("in", sources.Memory(range(60), parts=3)).map("noted", noted)
        numbers.key_by("rest", lambda n: n % 5).count("n").sink("out", sinks.Memory())
        result = mp.Simulation(workers=2, seed=seed, rescales=0, crashes=2, snapshots=kept()).run(job)
        hits.update(result.hits)
        hits["runs"] += result.incarnations
    assert hits["delta restored"] > 0
    assert 10 * 60 < len(reads) < hits["runs"] * 60


def test_a_run_with_snapshots_is_the_same_each_time() -> None:
    first, second = (
        mp.Simulation(workers=2, seed=4, crashes=2, snapshots=kept()).run(counting(sinks.Memory())) for _ in range(2)
    )
    assert (first.trace, first.hits, first.snapshots) == (second.trace, second.hits, second.snapshots)


def test_a_later_simulation_goes_on_where_one_has_ended() -> None:
    out, store = sinks.Memory(), kept()
    first = mp.Simulation(seed=1, crashes=0, snapshots=store).run(counting(out))
    again = mp.Simulation(workers=3, seed=2, crashes=0, snapshots=store).run(counting(out))
    assert (again.steps, again.snapshots) == (first.steps, first.snapshots), "the job has finished"
    assert out.by_key == WANTED


def test_s6_by_itself_no_seed_crashes_a_job_whose_sinks_cannot_discard() -> None:
    for seed in range(20):
        seen: list[int] = []
        result = mp.Simulation(seed=seed).run(counting(sinks.Callable(seen.append)))
        assert (result.incarnations, len(seen)) == (1, 60)


def test_r8_a_reader_without_positions_stays_and_so_does_its_worker() -> None:
    class Once:
        """A source that has no positions: each worker has a separate reader."""

        def build(self, worker: object) -> Any:
            return sources.Memory(range(10)).build_part("0", None)  # type: ignore[arg-type]

    for seed in range(10):
        out, job = sinks.Memory(), mp.Job("once", slots=4)
        job.source("in", Once()).key_by("self", lambda n: n).count("n").sink("out", out)
        mp.Simulation(workers=2, seed=seed, rescales=3, crashes=0).run(job)
        assert out.by_key == {number: [1, 2] for number in range(10)}


def test_an_error_says_how_to_have_it_again() -> None:
    job = mp.Job("broken")
    job.source("in", sources.Memory([1, 0])).map("inverse", lambda n: 1 / n).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError) as failed:
        mp.Simulation(workers=2, seed=7).run(job)
    assert any("Simulation(workers=2, seed=7" in note for note in failed.value.__notes__)


def test_it_can_be_started_and_commanded() -> None:
    out = sinks.Memory()
    handle = mp.Simulation(workers=1, seed=3, rescales=0, crashes=0).start(counting(out, rows=300))
    assert handle.rescale(3, timeout_s=60).members == (0, 1, 2)
    assert handle.wait(timeout_s=60).written == 300
    assert [len(values) for values in out.by_key.values()] == [60] * 5


@pytest.mark.parametrize(
    "wrong",
    [{"workers": 0}, {"workers": True}, {"seed": 1.5}, {"rescales": -1}, {"crashes": "2"}, {"rescales": True}],
)
def test_what_cannot_be_simulated_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(mp.PlanError):
        mp.Simulation(**wrong)
