"""While jobs run, Python's collector runs less often, and looks at no state because of a rescale; what the program has
chosen stays.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.workers.engine.garbage import ALLOCATIONS, fewer_collections, freeze_shared, make_old


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def threshold_in_a_job() -> tuple[int, int, int]:
    seen: list[tuple[int, int, int]] = []
    job = mp.Job("seen")
    job.source("in", sources.Memory([1])).map("look", lambda n: seen.append(gc.get_threshold())).sink(
        "out", sinks.Memory()
    )
    mp.run(job)
    return seen[0]


def test_a_job_raises_the_threshold_and_its_end_restores_it() -> None:
    assert threshold_in_a_job() == (ALLOCATIONS, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [0, 50, 50_000])
def test_a_threshold_that_the_program_has_chosen_stays(chosen: int) -> None:
    gc.set_threshold(chosen, 10, 10)
    assert threshold_in_a_job() == (chosen, 10, 10)
    assert gc.get_threshold() == (chosen, 10, 10)


def test_the_last_of_several_jobs_restores_it() -> None:
    first, second = fewer_collections(), fewer_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == ALLOCATIONS
    second.__exit__(None, None, None)
    assert gc.get_threshold()[0] == 700


def test_a_threshold_set_while_a_job_runs_stays() -> None:
    with fewer_collections():
        gc.set_threshold(123)
    assert gc.get_threshold()[0] == 123


def test_a_failed_job_restores_it() -> None:
    job = mp.Job("fails")
    job.source("in", sources.Memory([1])).map("fail", lambda n: 1 / 0).sink("out", sinks.Memory())
    with pytest.raises(mp.errors.OperatorError):
        mp.run(job)
    assert gc.get_threshold()[0] == 700


@pytest.fixture
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("unfrozen")
def test_what_a_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    make_old()
    assert gc.get_freeze_count() > frozen // 2, "some of them end in the time"


@pytest.mark.usefixtures("unfrozen")
def test_young_objects_become_old_also_in_a_process_that_shares_frozen_ones() -> None:
    freeze_shared()
    young: list[object] = [[]]
    make_old()
    assert any(one is young for one in gc.get_objects(generation=2))
    assert gc.get_freeze_count() == 0
