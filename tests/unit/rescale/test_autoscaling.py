"""The policy of the autoscaler under load curves and seeds, as a job that is a queue."""

from __future__ import annotations

import re

import pytest

import malstrom_py as mp
from bench.macro.autoscaling_noise import LITTLE, MEANS, NOISES, STRONG, changes, run
from bench.macro.load_curves import (
    HOUR_S,
    Curve,
    Noise,
    OurRule,
    Outcome,
    ThresholdRule,
    Workers,
    constant,
    day,
    ramp,
    simulate,
    spike,
    step,
)
from malstrom_py.rescale.autoscaling import AutoscalePolicy, Decision, Observation

CALM = ("5 %, 3 % over a minute", "10 %, 5 % over a minute", "50 %, nothing slow", "20 %, 15 % over 15 s")


def ours(curve: Curve, seconds: float, **options: object) -> Outcome:
    return simulate(OurRule(mp.Autoscale(max=12)), curve, seconds=seconds, **options)  # type: ignore[arg-type]


def seen(at_s: float, workers: int = 1, read: float = 500.0, busy: float = 0.5, **more: object) -> Observation:
    return Observation(at_s, workers, read, [busy] * workers, **more)  # type: ignore[arg-type]


def last(policy: AutoscalePolicy, count: int, *, from_s: float = 5.0, **what: object) -> Decision:
    """Return the last of ``count`` decisions on the same figures."""
    made = [policy.decide(seen(from_s + 5.0 * turn, **what)) for turn in range(count)]  # type: ignore[arg-type]
    return made[-1]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("before", "after"), [(500, 1500), (600, 4200), (300, 7000)])
def test_the_right_size_is_reached_in_two_decisions_after_a_step(before: int, after: int, seed: int) -> None:
    found = ours(step(before, after, 600), 1500, can=Workers(loss=0.1), noise=LITTLE, seed=seed)
    assert found.decisions <= 2
    takes = Workers(loss=0.1).take(found.size_at(1500))
    assert 0.55 < after / takes < 0.8


@pytest.mark.parametrize("rows_per_s", [100, 690, 700, 710, 1400, 2099, 2101, 5000])
def test_a_constant_load_needs_one_size(rows_per_s: int) -> None:
    found = ours(constant(rows_per_s), HOUR_S)
    assert found.decisions <= 1


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("noise", NOISES)
def test_noise_makes_few_needless_decisions(noise: str, mean: int) -> None:
    """About one an hour: two of them where the load is rough, as one takes back the other."""
    made = [len(changes(run(constant(mean), 4 * HOUR_S, NOISES[noise], seed))) for seed in range(3)]
    assert sum(made) / len(made) <= (1 if noise in CALM else 4)


@pytest.mark.parametrize(("noise", "seed"), [("20 %, 15 % over a minute", 0), ("30 %, 25 % over a minute", 2)])
def test_many_workers_leave_a_rough_load_after_the_cool_down(noise: str, seed: int) -> None:
    found = run(spike(1200, 6000, 1200, 600), 2 * HOUR_S, NOISES[noise], seed)
    assert max(size for _, size in found.sizes) >= 8
    assert found.size_at(1800 + 2400) <= 5


def test_a_noisy_load_keeps_the_workers_that_its_next_peak_needs() -> None:
    noisy = ours(constant(1200), 2 * HOUR_S, workers=4, noise=STRONG)
    calm = ours(constant(1200), 2 * HOUR_S, workers=4, noise=LITTLE)
    assert (noisy.size_at(7199), calm.size_at(7199)) == (3, 2)
    assert noisy.decisions <= 2


def test_workers_leave_a_calm_load_after_the_cool_down() -> None:
    left = [(at_s, size) for at_s, size in ours(step(4200, 600, 1800), 2700).sizes if at_s > 1800]
    assert len(left) <= 2
    assert left[0][0] < 1800 + 300 + 30
    assert left[-1][1] == 1


def test_a_cool_down_of_more_than_an_hour_is_kept() -> None:
    rule = OurRule(mp.Autoscale(max=12, cool_down_s=2 * HOUR_S))
    found = simulate(rule, step(4200, 600, 1800), seconds=5 * HOUR_S)
    assert found.size_at(1800 + 2 * HOUR_S) == found.size_at(1800) > 1
    assert found.size_at(5 * HOUR_S - 1) == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_lag_of_a_spike_is_gone_in_the_time_that_the_added_workers_allow(seed: int) -> None:
    found = ours(spike(1200, 6000, 1200, 600), 3600, workers=2, noise=LITTLE, seed=seed)
    grown_s, size = next((at_s, size) for at_s, size in found.sizes if at_s > 1200)
    lag, can = max(found.lags), Workers().take(size)
    done_s = next(at_s for at_s, rows in enumerate(found.lags) if at_s > grown_s and rows < 600)
    assert done_s - grown_s <= 1.2 * lag / (can - 6000) + 20
    assert found.size_at(3599) in {2, 3}


def test_a_day_is_followed_up_and_down() -> None:
    found = ours(day(600, 5500, 5 * HOUR_S), 5 * HOUR_S, noise=LITTLE)
    assert found.size_at(2.5 * HOUR_S) in {8, 9}
    assert found.size_at(5 * HOUR_S - 1) <= 2
    assert found.lag_s() < 10


@pytest.mark.parametrize("noise", [Noise(), Noise(quick=0.1), STRONG], ids=["calm", "little", "strong"])
@pytest.mark.parametrize("cool_downs", [6, 8, 12])
def test_a_load_that_falls_within_several_cool_downs_is_followed_down(cool_downs: int, noise: Noise) -> None:
    cycle_s = 300.0 * cool_downs
    found = ours(day(600, 5500, cycle_s), 1.5 * cycle_s, noise=noise)
    assert found.size_at(cycle_s + 450) <= found.size_at(0.6 * cycle_s) - 2


def test_two_workers_that_take_less_than_twice_as_much_are_accounted_for() -> None:
    found = ours(step(600, 4200, 600), 2400, can=Workers(loss=0.3))
    assert found.decisions <= 3
    assert 0.8 * Workers(loss=0.3).take(found.size_at(2399)) >= 4200


def test_workers_that_help_no_more_are_given_back() -> None:
    found = ours(constant(5000), HOUR_S, can=Workers(usable=2), workers=2)
    assert found.size_at(HOUR_S - 1) == 2
    assert found.decisions == 2
    assert re.search(r"\d+ workers take no more than 2 did", found.reasons[-1])


def test_a_skewed_worker_counts() -> None:
    even = ours(constant(2600), HOUR_S)
    skewed = ours(constant(2600), HOUR_S, can=Workers(skew=1.6))
    assert skewed.size_at(HOUR_S - 1) > even.size_at(HOUR_S - 1)


def test_a_job_whose_lag_is_not_known_grows_while_it_is_full() -> None:
    found = ours(constant(2600), HOUR_S, has_lag=False)
    assert found.size_at(HOUR_S - 1) in {4, 5}
    assert found.decisions <= 5


def test_a_lag_that_grows_counts_though_workers_are_not_busy() -> None:
    policy = AutoscalePolicy(mp.Autoscale())
    made = last(policy, 4, read=100.0, busy=0.1, lag_rows=5000, lag_per_s=100.0)
    assert made.size == 3


def test_back_pressure_counts_though_workers_are_not_busy() -> None:
    policy = AutoscalePolicy(mp.Autoscale())
    assert last(policy, 4, busy=0.3, waiting=0.6).size == 2


def test_a_lag_is_read_in_time() -> None:
    policy = AutoscalePolicy(mp.Autoscale(catch_up_s=60))
    made = last(policy, 4, read=1000.0, busy=1.0, lag_rows=180_000, lag_per_s=-500.0)
    assert made.size == 4
    assert "180,000 rows of lag wait" in made.reason


def test_the_size_of_a_user_is_left_alone_for_a_cool_down() -> None:
    policy = AutoscalePolicy(mp.Autoscale(cool_down_s=100))
    policy.held(0.0)
    assert last(policy, 19, busy=1.0).reason == "a user has requested this number of workers"
    assert last(policy, 3, from_s=100.0, busy=1.0).goes


def test_the_size_of_a_user_is_left_alone_outside_the_limits_too() -> None:
    policy = AutoscalePolicy(mp.Autoscale(max=2, cool_down_s=100))
    policy.held(0.0)
    assert not last(policy, 18, workers=5).goes
    assert last(policy, 3, from_s=100.0, workers=5).size == 2


def test_workers_that_cannot_leave_do_not_keep_others_from_coming() -> None:
    policy = AutoscalePolicy(mp.Autoscale(cool_down_s=20))
    fewer = last(policy, 4, workers=3, read=300.0, busy=0.1)
    assert fewer.size == 1
    policy.refused(25.0, fewer, 3, "a source cannot move")
    assert last(policy, 4, from_s=30.0, workers=3, read=3000.0, busy=1.0).size > 3


def test_what_there_is_no_room_for_is_asked_for_again_after_a_while() -> None:
    policy = AutoscalePolicy(mp.Autoscale())
    assert last(policy, 4, busy=1.0).size == 2
    policy.refused(20.0, Decision(1, 2, "more"), 1, "the cluster is full")
    stays = last(policy, 11, from_s=25.0, busy=1.0)
    assert not stays.goes
    assert stays.reason.endswith("and the job may have no more than 1 worker: the cluster is full")
    assert last(policy, 3, from_s=80.0, busy=1.0).size == 2


def test_a_size_outside_the_limits_is_left_at_once() -> None:
    assert last(AutoscalePolicy(mp.Autoscale(min=3)), 1).size == 3
    assert last(AutoscalePolicy(mp.Autoscale(max=2)), 1, workers=5).size == 2


def test_a_job_without_any_load_has_the_fewest_workers() -> None:
    made = last(AutoscalePolicy(mp.Autoscale(min=2)), 60, workers=4, read=0.0, busy=0.0)
    assert made.size == 2


def test_workers_that_left_too_early_stay_longer_the_next_time() -> None:
    def waves(at_s: float) -> float:
        return 3000.0 if at_s % 900 < 450 else 1200.0

    found = ours(waves, 4 * HOUR_S, noise=LITTLE)
    assert len([at_s for at_s, _ in found.sizes if at_s > 900]) <= 4


def test_workers_stay_for_bursts_that_return() -> None:
    def bursts(at_s: float) -> float:
        return 2400.0 if at_s % 600 < 60 else 1050.0

    found = ours(bursts, 4 * HOUR_S, noise=LITTLE)
    assert len([at_s for at_s, _ in found.sizes if at_s > 900]) <= 2


@pytest.mark.parametrize(
    "options",
    [
        {"min": 0},
        {"max": 2.5},
        {"min": 4, "max": 2},
        {"target": 1.0},
        {"target": "0.7"},
        {"interval_s": 0.1},
        {"cool_down_s": float("inf")},
        {"catch_up_s": True},
        {"catch_up_s": float("nan")},
        {"interval_s": 10**400},
    ],
)
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(mp.PlanError, match="autoscale: "):
        mp.Autoscale(**options)  # type: ignore[arg-type]


CURVES = {
    "step": (step(600, 4200, 600), HOUR_S),
    "ramp": (ramp(600, 5000, 600, HOUR_S), 1.5 * HOUR_S),
    "spike": (spike(1200, 6000, 1200, 600), 2 * HOUR_S),
    "noise": (constant(2400), 4 * HOUR_S),
}


def test_a_threshold_needs_more_decisions_and_workers_at_equal_lag() -> None:
    mine: list[Outcome] = []
    theirs: list[Outcome] = []
    for curve, seconds in CURVES.values():
        noise = Noise(quick=0.1, slow=0.08)
        for rule, into in ((OurRule(mp.Autoscale(max=12)), mine), (ThresholdRule(1, 12, 0.5), theirs)):
            into.append(simulate(rule, curve, seconds=seconds, noise=noise))
    assert sum(one.decisions for one in mine) < 0.7 * sum(one.decisions for one in theirs)
    assert sum(one.worker_s for one in mine) < 0.9 * sum(one.worker_s for one in theirs)
    assert max(one.lag_s(0.99) for one in mine) <= max(one.lag_s(0.99) for one in theirs)
