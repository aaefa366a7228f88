"""What a message repeats of an error of a user's function: names from the code, and no values."""

from __future__ import annotations

import linecache
import pickle
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import malstrom_py as mp
from malstrom_py import agg, sources
from malstrom_py.errors import has_safe_text
from malstrom_py.errors import text as failures
from malstrom_py.errors.text import safe_detail

SECRET = "s3cret"
ROW = {"carrier": SECRET, "delay": 1}
LOOK_UP: dict[str, int] = {}


def words(function: Callable[..., object], row: object = ROW) -> str:
    try:
        function(row)
    except Exception as error:
        return safe_detail(error, row)
    raise AssertionError("it did not raise")


def looked_up(row: Any, field: str) -> Any:
    return row[field]


def as_field(row: Any) -> Any:
    if row["carrier"] == "s3cret":
        return row[row["carrier"]]
    return None


def no_such_name(row: Any) -> Any:
    return dely  # type: ignore[name-defined]  # noqa: F821


def wrong_sum(row: Any) -> Any:
    return row["carrier"] + row["delay"]


def one_more(row: Any) -> Any:
    row["n"] += 1


def too_early(row: Any) -> Any:
    if not row:
        total = 1
    return total  # pyright: ignore[reportPossiblyUnboundVariable]


def too_early_inside(row: Any) -> Any:
    def inside() -> Any:
        return total

    found = inside()
    total = 1
    return found + total


def imports(row: Any) -> Any:
    import no_such_module_at_all.inside  # type: ignore[import-not-found]

    return no_such_module_at_all


class Reading:
    pass


def reading() -> Any:
    return Reading()


def empty() -> dict[str, Any]:
    return {}


def pair_of_none(row: Any) -> Any:
    first, second = nothing()
    return first, second


def thrown(row: Any) -> Any:
    numbers = (number for number in [1, 2])
    next(numbers)
    numbers.throw(TypeError(f"'{row['carrier']}' object is not iterable"))


def registered(row: Any) -> Any:
    text = "{}['" + row["carrier"] + "']"
    linecache.cache["/made.py"] = (len(text), None, [text + "\n"], "/made.py")
    return eval(compile(text, "/made.py", "eval"))


def nothing() -> Any:
    return None


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda row: row["dep_delay"], "the row has no field 'dep_delay'"),
        (lambda row: row["delay"] - row["dep_delay"], "the row has no field 'dep_delay'"),
        (lambda row: empty()["top"], "no item 'top'"),
        (lambda row: LOOK_UP["dep_delay"], "no item 'dep_delay'"),
        (lambda row: {"a": empty()}["a"]["name"], "no item 'name'"),
        (one_more, "the row has no field 'n'"),
        (
            lambda row: (
                row["delay"],
                row[
                    # where it is declared so
                    "dep_delay"
                ],
            ),
            "the row has no field 'dep_delay'",
        ),
        (too_early, "local variable 'total' has no value there"),
        (too_early_inside, "local variable 'total' has no value there"),
        (imports, "there is no module 'no_such_module_at_all'"),
        (lambda row: reading().price, "Reading has no attribute 'price'"),
        (lambda row: row.price, "dict has no attribute 'price'"),
        (lambda row: row.price(), "dict has no attribute 'price'"),
        (no_such_name, "name 'dely' is not defined"),
        (lambda row: row["delay"] < row["carrier"], "'<' not supported between instances of 'int' and 'str'"),
        (wrong_sum, 'can only concatenate str (not "int") to str'),
        (lambda row: row["delay"]["x"], "'int' object is not subscriptable"),
        (pair_of_none, "cannot unpack non-iterable NoneType object"),
        (looked_up, "looked_up() missing 1 required positional argument: 'field'"),
    ],
)
def test_names_that_stand_in_the_code_are_told(function: Callable[..., object], said: str) -> None:
    assert words(function) == said


@pytest.mark.parametrize(
    "function",
    [
        lambda row: empty()[row["carrier"]],
        lambda row: looked_up({}, row["carrier"]),
        as_field,
        lambda row: getattr(row, row["carrier"]),
        lambda row: int(row["carrier"]),
        lambda row: float(row["carrier"]),
        lambda row: [].index(row["carrier"]),
        lambda row: {}.pop(row["carrier"]),
        lambda row: eval(row["carrier"]),
        lambda row: eval("{}['" + row["carrier"] + "']"),
        lambda row: eval("(5)." + row["carrier"]),
        lambda row: exec("import " + row["carrier"]),
        lambda row: exec("del " + row["carrier"]),
        lambda row: eval(compile("{}['" + row["carrier"] + "']", __file__, "eval")),
        lambda row: eval(compile("\n" * 40 + "{}['" + row["carrier"] + "']", __file__, "eval")),
        lambda row: eval(compile(row["carrier"], "<stdin>", "eval")),
        registered,
        lambda row: exec("def f():\n  return " + row["carrier"] + "\n  " + row["carrier"] + "=1\nf()"),
        lambda row: __import__(row["carrier"]),
        thrown,
    ],
)
def test_what_was_computed_of_a_record_is_not_told(function: Callable[[Any], object]) -> None:
    assert words(function) == ""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda row: type(row["carrier"], (), {})().price, "there is no attribute 'price'"),
        (lambda row: type(row["carrier"], (), {})() + 1, ""),
        (lambda row: type(row["carrier"], (), {})()[0], ""),
        (
            lambda row: namedtuple("R", [row["carrier"]])(),
            "a function that is called there is missing 1 required positional argument",
        ),
        (
            lambda row: made(row["carrier"])(),
            "a function that is called there is missing 1 required positional argument",
        ),
    ],
)
def test_a_type_or_a_function_that_was_made_of_a_record_has_no_name(
    function: Callable[[Any], object], said: str
) -> None:
    assert words(function) == said


def made(name: str) -> Any:
    found: dict[str, Any] = {}
    exec(f"def f({name}): pass", found)
    return found["f"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(SECRET), "OSError"),
        (OSError(28, SECRET, f"/x/{SECRET}"), "OSError: [Errno 28] No space left on device"),
        (FileNotFoundError(2, "No such", SECRET), "FileNotFoundError: [Errno 2] No such file or directory"),
        (OSError(SECRET, SECRET), "OSError"),
        (OSError(401, SECRET), "OSError"),
        (type("HTTPError", (OSError,), {})(28, SECRET), "HTTPError"),
        (mp.OperatorError(SECRET), "OperatorError"),
    ],
)
def test_of_the_system_a_message_repeats_what_the_number_says(error: Exception, said: str) -> None:
    def failing(row: Any) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        failing(ROW)
    assert failures.safe_text(raised.value) == said


@pytest.mark.parametrize("kind", [KeyError, AttributeError, NameError, TypeError, ValueError, RuntimeError])
def test_what_a_user_raises_is_not_told(kind: type[Exception]) -> None:
    def failing(row: Any) -> None:
        raise kind(f"'{row['carrier']}' object is not subscriptable")

    assert words(failing) == ""


def test_an_error_that_raises_when_it_is_asked_tells_its_type_alone() -> None:
    class Sly(Exception):
        def __getattr__(self, name: str) -> Any:
            raise ValueError(name)

    def failing(row: Any) -> None:
        raise Sly

    assert words(failing) == ""


def test_a_missing_item_of_what_is_no_row_is_called_so() -> None:
    assert words(lambda row: row[0]["top"], ({},)) == "no item 'top'"


def failure(step: Callable[[Any], Any], rows: list[Any]) -> mp.OperatorError:
    stream = mp.Job("docs").source("in", sources.Memory(rows))
    with pytest.raises(mp.OperatorError) as raised:
        mp.collect(step(stream))
    return raised.value


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (
            lambda s: s.assign_timestamps("at", lambda row: row["carrier"]),
            "a timestamp must be an int in the step's unit or an aware datetime, got str: parse it, with",
        ),
        (
            lambda s: s.assign_timestamps("at", "carrier"),
            "in column 'carrier': a timestamp must be an int in the step's unit or an aware datetime, got str",
        ),
        (
            lambda s: s.key_by("k", lambda row: 1).stateful_map("m", lambda key, value, state: None),
            "must return (output, state), got None. Correct the function",
        ),
        (
            lambda s: s.key_by("k", lambda row: 1).stateful_map("m", lambda key, value, state: (1, 2, 3)),
            "must return (output, state), got a tuple of 3. Correct the function",
        ),
        (
            lambda s: s.key_by("k", lambda row: 1).stateful_map("m", lambda key, value: (1, 2)),
            "takes 2 positional arguments but 3 were given. Correct the function",
        ),
        (
            lambda s: s.key_by("k", lambda row: 1).stateful_flat_map("m", lambda key, value, state: None),
            "must return (outputs, state), got None. Correct the function",
        ),
        (
            lambda s: s.key_by("k", lambda row: 1).stateful_flat_map("m", lambda key, value, state: (None, 1)),
            "must return (outputs, state), outputs something to iterate over, got None. Correct the function",
        ),
        (lambda s: s.flat_map("f", lambda row: None), "must return something to iterate over, got None. Correct"),
        (lambda s: s.split("s", 2, lambda row: None)[0], "must return the numbers of streams, got None. Correct"),
        (
            lambda s: s.split("s", 2, lambda row: [2])[0],
            "streams are numbered from 0 to 1, got another number. Correct",
        ),
        (
            lambda s: s.split("s", 2, lambda row: [row["carrier"]])[0],
            "streams are numbered from 0 to 1, got something that is not an int. Correct",
        ),
        (lambda s: s.map("m", lambda row: row["dep_delay"]), "the row has no field 'dep_delay'. Correct the function"),
        (lambda s: s.map("m", lambda row: {}[row["carrier"]]), "test_text.py"),
    ],
)
def test_the_error_of_a_step_tells_the_half_that_decides(step: Callable[[Any], Any], said: str) -> None:
    error = failure(step, [ROW])
    assert said in str(error)
    assert SECRET not in str(error)


def test_a_naive_time_says_what_to_do() -> None:
    from datetime import datetime

    error = failure(lambda s: s.assign_timestamps("at", "t"), [{"t": datetime(2024, 1, 1)}])  # noqa: DTZ001
    assert "the datetime has no time zone: add one, for instance with .replace(tzinfo=timezone.utc)" in str(error)
    assert 'sources.Files(..., timezone="UTC")' in str(error)


def test_rows_of_columns_tell_the_fields_that_they_have(tmp_path: Any) -> None:
    (tmp_path / "flights.csv").write_text("carrier,delay\nUA,2\n")
    flights = mp.Job("docs").source("in", sources.Files(tmp_path / "flights.csv"))
    with pytest.raises(mp.OperatorError, match=r"the row has no field 'dep_delay', only 'carrier', 'delay'\. Correct"):
        mp.collect(flights.map("m", lambda row: row["dep_delay"]))


def test_a_text_of_ours_stays_ours_on_its_way_between_processes() -> None:
    from malstrom_py.data.time import to_time

    with pytest.raises(TypeError) as raised:
        to_time("x", "ms")
    assert has_safe_text(pickle.loads(pickle.dumps(raised.value)))


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.map("m", lambda row: eval(row["carrier"])),
        lambda s: s.key_by("k", "price"),
        lambda s: s.assign_timestamps("t", "price"),
        lambda s: s.key_by("k", lambda row: 1).sum("m", by="price"),
        lambda s: s.key_by("k", lambda row: 1).aggregate("m", n=agg.sum("price")),
        lambda s: s.select("m", "price"),
        lambda s: s.select("m", pl.struct(pl.all(), pl.col("price"))),
        lambda s: s.with_columns("m", n=pl.struct(pl.exclude("delay")).cast(pl.Int64)),
        lambda s: s.with_columns("w", n=pl.lit(1)).map("m", lambda row: row["price"]),
        lambda s: s.with_columns("w", n=pl.lit(1)).key_by("k", "price"),
        lambda s: s.with_columns("w", n=pl.lit(1)).with_columns("m", p=pl.col("price")),
        lambda s: s.map("m", says_it_itself),
    ],
)
def test_neither_a_value_nor_the_key_of_a_dict_comes_into_a_message(step: Callable[[Any], Any]) -> None:
    assert SECRET not in str(failure(step, [{"carrier": SECRET, f"alice@{SECRET}": 1, "delay": 2}]))


def says_it_itself(row: Any) -> Any:
    raise mp.OperatorError(f"step 'm': {row['carrier']}", step="m")


def raises_of_the_system(part: int, start: int) -> Any:
    yield 1
    raise OSError(SECRET)


def no_states() -> Any:
    raise OSError(SECRET)


@pytest.mark.parametrize(
    "of_job",
    [
        lambda job: job.source("in", sources.Generator(raises_of_the_system)),
        lambda job: (
            job.source("in", sources.Memory([1])).key_by("k", lambda value: value).sum("s", initial_state=no_states)
        ),
    ],
)
def test_of_an_error_of_the_system_no_text_of_the_users_comes_into_a_message(of_job: Callable[[Any], Any]) -> None:
    with pytest.raises(mp.MalstromError) as raised:
        mp.collect(of_job(mp.Job("docs")))
    assert "OSError" in str(raised.value)
    assert SECRET not in str(raised.value)
