"""The benchmarks compute what they are compared with. How fast they are is not asserted."""

from __future__ import annotations

import re

import pytest

from bench.macro import columns, counted_workers, peer_chart, peers, scaling, thousand_workers
from bench.macro.peer_queries import QUERIES, Query
from bench.micro import __main__ as micro
from bench.micro import exchange, inputs, state
from bench.micro.workloads import WORKLOADS, Workload


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


@pytest.mark.parametrize("share", exchange.SHARES)
def test_every_row_crosses_to_the_owner_of_its_slot(share: str) -> None:
    pairs = inputs.w1(3000, zipf=False)
    crossing = exchange.Crossing(exchange.SHARES[share], 256)
    crossing.send(exchange.batches_of(pairs, 256))
    (stayed, sum_here), (left, sum_there) = crossing.checks[0], crossing.checks[1]
    assert (stayed + left, sum_here + sum_there) == (3000, sum(value for _, value in pairs))
    assert (stayed == 0) is share.startswith("all")


def test_with_one_worker_only_sampled_keys_are_given_to_the_partitioner() -> None:
    one, two = exchange.measure_workers(30_000, 1, (1, 2))  # a job samples 32 rows at least
    assert one.endswith("of one, 0.00 keys per record given to the partitioner")
    hashed = re.search(r"of one, (\d\.\d\d) keys per record given to the partitioner$", two)
    # Keys that are hashed for figures come on top, a few for each time that the figures are taken.
    assert hashed is not None
    assert 1 <= float(hashed[1]) < 1.5


def test_the_step_and_the_dict_end_with_the_same_states() -> None:
    results = []
    for make in (state.in_dict, state.in_step):
        states, take = make()
        for batch in [*state.filling(3000), *state.asking(3000, 2000)]:
            take(batch)
        results.append(states)
    assert results[0] == results[1] == {key: key + 1000 for key in range(3000)}


@pytest.mark.long
def test_chains_of_columns_compute_what_polars_does() -> None:
    assert columns.main(["--n", "3000", "--reps", "1"]) == 0


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_all_forms_of_a_query_compute_the_same(query: Query) -> None:
    data = query.data(8_000)
    count, _ = expected = query.loop(data.rows)
    found = {system: run(data) for system, run in peers.variants_of(query).items()}
    assert set(found.values()) == {expected}, found
    assert count > 0


def test_the_chart_has_a_dot_per_system() -> None:
    seconds = {system: [0.5, 0.4] for system in ("loop", "rows", "columns", "bytewax", "polars", "duckdb")}
    drawn = peer_chart.draw({"described": "here", "rows": 1000, "seconds": {"W1": seconds}}, {"W1": "sums"})
    assert drawn.count("<circle") == 2 * len(peer_chart.SYSTEMS)
    assert "1.0 times bytewax" in drawn


@pytest.mark.long
def test_steps_of_many_keys_and_windows_compute_what_loops_do() -> None:
    assert scaling.main(["--n", "3000", "--reps", "1", "--keys", "1000", "--windows", "1", "30"]) == 0


def test_the_workers_on_paper_send_what_the_protocol_page_says() -> None:
    workers, target, exchanges, regions, after_regions = 4, 5, 2, 2, 1
    run = thousand_workers.Run(workers, slots=64, keys=1_000_000)
    run.open()
    run.reports()
    run.sample()
    run.metrics()
    run.snapshot()
    members = tuple(run.coordinator.members)
    run.group.traffic = counted_workers.Traffic()
    run.rescale((*members, *run.coordinator.new_workers(1)))
    sent, moves = run.group.traffic, run.group.moves
    letters = target * (2 + exchanges + after_regions + regions) + target * after_regions
    apart = {"Build", "Built", "Reach", "Reached", "Welcome"}
    found = sum(count for kind, count in sent.letters.items() if kind not in apart)
    # Who will lose slots lists its keys while others join: one letter to each.
    assert found == moves * letters + 2 * sent.letters["PollParts"] + workers
    assert sent.letters["FindKeys"] == workers
    assert sent.between.total() == moves * target**2 * (exchanges + after_regions)
    report = run.rescale(members)
    assert report.members == members
    assert run.group.traffic.letters["ByesTaken"] == workers * exchanges
    run.coordinator.close()
