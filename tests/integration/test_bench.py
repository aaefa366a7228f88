"""The benchmarks run, verify what they compute and print what they promise. How fast it went is not asserted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.macro import columns
from bench.micro import __main__ as micro
from bench.micro import exchange, inputs, memory, state, timing
from bench.micro.workloads import WORKLOADS, Workload
from malstrom_py.rescale.channels.channel import RemoteInbound
from tests.tree import ROOT


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_computes_what_its_loop_does(workload: Workload) -> None:
    rows = workload.make(20_000)
    assert rows == workload.make(20_000), "the seed is fixed"
    count, total = workload.job(rows)
    assert (count, total) == workload.loop(rows)
    assert count > 0


def test_a_wrong_result_fails_the_benchmark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Workload("wrong", lambda n: list(range(n)), loop=lambda rows: (1, 1), job=lambda rows: (1, 2))
    monkeypatch.setattr(micro, "WORKLOADS", [wrong])
    assert micro.main(["--n", "10", "--reps", "1"]) == 1
    assert "WRONG RESULT: job gave (1, 2), but loop gave (1, 1)" in capsys.readouterr().err


def test_a_name_that_is_no_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        micro.main(["--only", "w1"])
    assert "invalid choice: 'w1'" in capsys.readouterr().err


def test_with_one_worker_no_key_is_given_to_the_partitioner() -> None:
    one, two = exchange.measure_workers(3000, 1, (1, 2))
    assert one.endswith("of one, 0.00 keys per record given to the partitioner")
    assert two.endswith("of one, 1.00 keys per record given to the partitioner")


@pytest.mark.parametrize("rows", [1, 256, 1024, 8192])
@pytest.mark.parametrize("share", exchange.SHARES)
def test_every_row_crosses_to_the_owner_of_its_slot(share: str, rows: int) -> None:
    pairs = inputs.w1(3000, zipf=False)
    crossing = exchange.Crossing(exchange.SHARES[share], rows)
    crossing.send(exchange.batches_of(pairs, rows))
    (stayed, _), (left, total) = crossing.checks[0], crossing.checks[1]
    assert stayed + left == 3000
    assert total == sum(value for _, value in pairs) - crossing.checks[0][1]
    assert (stayed == 0) is share.startswith("all")


def test_rows_that_are_lost_on_the_way_are_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteInbound, "take", lambda lane: None)
    with pytest.raises(timing.WrongResult, match=r"exchange gave \(0, 0\), but by hand gave \(100, \d+\)"):
        exchange.measure_exchange(100, 1)


def test_the_step_and_the_dict_end_with_the_same_states() -> None:
    results = []
    for make in (state.in_dict, state.in_step):
        states, take = make()
        for batch in [*state.filling(3000), *state.asking(3000, 2000)]:
            take(batch)
        results.append(states)
    assert results[0] == results[1] == {key: key + 1000 for key in range(3000)}


def test_the_benchmark_is_a_program() -> None:
    command = [sys.executable, "-m", "bench.micro", "--n", "1000", "--reps", "1", "--only", "executor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "10,000 untouched nodes" in done.stdout


def test_a_round_calls_every_variant_once_and_ratios_are_taken_round_by_round() -> None:
    calls: list[str] = []
    ticks = iter(range(100))

    def variant(name: str) -> timing.Variant:
        return lambda data: calls.append(name)

    seconds = timing.interleave(
        {"a": variant("a"), "b": variant("b")},
        [],
        reps=2,
        clock=lambda: float(next(ticks)),
        each_round=lambda: calls.append("-"),
    )
    assert calls == ["a", "b", "a", "b", "-", "a", "b", "-"], "the first round only compares results"
    assert seconds == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert timing.ratios([2.0, 6.0], [1.0, 2.0]) == timing.Spread(2.5, 2.0, 3.0)


def test_a_job_over_more_records_takes_no_more_memory() -> None:
    small = memory.run_apart(20_000, parquet=False)
    large = memory.run_apart(200_000, parquet=False)
    assert large["bytes"] == 200_000 * memory.RECORD_BYTES
    assert large["rss_mb"] < small["rss_mb"] + 20, "200 MB of records went through"
    assert large["rss_mb"] < memory.BUDGET_MB


def test_lost_records_are_a_wrong_result() -> None:
    told = {"rows": 9.0, "bytes": 9.0 * memory.RECORD_BYTES, "seconds": 1.0, "rss_mb": 1.0}
    with pytest.raises(timing.WrongResult, match="9 rows with 8793 bytes came through of 10"):
        memory.report("sink", told, 10)


def test_chains_of_columns_compute_what_polars_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert columns.main(["--n", "3000", "--reps", "1"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in columns.PAIRS)
    assert "over four times the rows" in said
