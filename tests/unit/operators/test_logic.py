"""Logics: which hooks one has, and the error when one is misspelt or missing."""

from __future__ import annotations

from typing import Any

import pytest

from malstrom_py.data.messages import DataMessage, Epoch
from malstrom_py.errors import PlanError
from malstrom_py.operators.logic import KeyedLogic, Output, hooks_of, stateless_hooks_of


class OnlyData(KeyedLogic[str, int, int, int]):
    def on_data(self, message: DataMessage[str, int], key_state: int | None, output: Output[str, int]) -> int | None:
        return None


class DataAndEpoch(OnlyData):
    def on_epoch(self, epoch: Epoch, state: Any, output: Output[str, int]) -> None:
        """Overridden, to do nothing."""


class Batches(KeyedLogic[str, int, int, int]):
    def on_batch(self, keys: Any, values: Any, timestamps: Any, state: Any, output: Any) -> None:
        """Overridden, to do nothing."""


class NoBase:
    def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
        return None


class CallableLogic:
    def __call__(self, message: Any, key_state: Any, output: Any) -> Any:
        return None


def function(message: Any, key_state: Any, output: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("logic", "hooks"),
    [
        (OnlyData(), {"on_data"}),
        (DataAndEpoch(), {"on_data", "on_epoch"}),
        (Batches(), {"on_batch"}),
        (NoBase(), {"on_data"}),
        (CallableLogic(), {"on_data"}),
        (function, {"on_data"}),
        (NoBase().on_data, {"on_data"}),
        (lambda *_: None, {"on_data"}),
    ],
)
def test_only_hooks_that_are_really_there_are_found(logic: object, hooks: set[str]) -> None:
    assert hooks_of(logic, "step").keys() == hooks


def with_hook(name: str, base: type = OnlyData) -> object:
    return type("Misspelt", (base,), {name: lambda *_: None})()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("on_epoc", "on_epoch"), ("on_epochs", "on_epoch"), ("on_dta", "on_data"), ("on_batches", "on_batch")],
)
def test_a_near_miss_is_told_with_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(PlanError, match=rf"step 'totals': Misspelt\.{name} is not a hook.*did you mean '{meant}'\?"):
        hooks_of(with_hook(name), "totals")


@pytest.mark.parametrize("name", ["on_shutdown", "on_close"])
def test_a_hook_that_is_not_there_yet_is_told_with_those_that_are(name: str) -> None:
    with pytest.raises(PlanError, match=rf"'totals'.*{name} is not a hook of this step; there are on_data, on_batch"):
        hooks_of(with_hook(name), "totals")


def test_attributes_that_are_no_methods_are_no_hooks() -> None:
    logic = type("Switched", (OnlyData,), {"on_off": True})()
    assert hooks_of(logic, "step").keys() == {"on_data"}


def test_a_class_is_told_to_be_made() -> None:
    with pytest.raises(PlanError, match=r"step 'totals': pass an instance, OnlyData\(…\), not the class itself"):
        hooks_of(OnlyData, "totals")


@pytest.mark.parametrize("logic", [None, 7, "on_data", KeyedLogic(), type("E", (KeyedLogic,), {"on_epoch": id})()])
def test_what_takes_no_data_is_refused(logic: object) -> None:
    with pytest.raises(PlanError, match=r"step 'totals': .* has neither on_data nor on_batch"):
        hooks_of(logic, "totals")


def test_the_base_class_asks_for_a_hook_and_ignores_epochs() -> None:
    base: KeyedLogic[str, int, int, int] = KeyedLogic()
    with pytest.raises(NotImplementedError):
        base.on_data(DataMessage("a", 1), None, Output())
    with pytest.raises(NotImplementedError):
        base.on_batch([], [], None, {}, Output())
    base.on_epoch(Epoch(1), {}, Output())


def test_a_side_output_keeps_its_records_apart_and_in_order() -> None:
    output: Output[str, int] = Output()
    output.emit("a", 1, 10)
    output.side("late").emit("a", 2, 20)
    output.side("odd").send(DataMessage("b", 3, 30))
    output.side("late").send(DataMessage("c", 4))
    assert (output.side("late").values, output.side("odd").values, output.side("none").values) == ([2, 4], [3], [])
    assert (output.keys, output.timestamps) == (["a", "a", "b", "c"], [10, 20, 30, None])
    assert output.values[0] == 1
    assert [str(value) for value in output.values[1:]] == ["Sided('late')", "Sided('odd')", "Sided('late')"]


def test_what_is_taken_back_is_taken_back_from_side_outputs_too() -> None:
    output: Output[str, int] = Output()
    output.side("odd").emit("a", 1)
    output.emit("a", 2)
    output.side("odd").emit("a", 3)
    output.truncate(1, 0)
    assert (output.side("odd").values, len(output)) == ([1], 1)


def test_a_hook_that_nobody_would_await_is_refused() -> None:
    async def look_up(message: Any, state: Any, output: Any) -> None:
        """Never runs."""

    class Waits(KeyedLogic[Any, Any, Any, Any]):
        async def on_data(self, message: Any, key_state: Any, output: Any) -> Any:
            """Never runs."""

    for logic in (look_up, Waits()):
        with pytest.raises(PlanError, match="step 'wait': on_data is a coroutine function"):
            hooks_of(logic, "wait")
    with pytest.raises(PlanError, match="use enrich"):
        stateless_hooks_of(look_up, "wait")
