"""Names of other stream processors: what answers them is there, and a name that is not there stays absent."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.errors.unknown_names import AGG, JOB, MODULE, SINKS, SOURCES, STREAM, WINDOWS, Table, answer, page_path
from tests.pages import anchors_of
from tests.tree import ROOT

TABLES: dict[str, tuple[Table, tuple[Any, ...]]] = {
    "stream": (STREAM, (mp.StreamBuilder, mp.KeyedStreamBuilder)),
    "job": (JOB, (mp.Job,)),
    "package": (MODULE, (mp,)),
    "sources": (SOURCES, (sources,)),
    "sinks": (SINKS, (sinks,)),
    "agg": (AGG, (agg,)),
    "windows": (WINDOWS, (windows,)),
}
HERE = {"mp": mp, "sources": sources, "sinks": sinks, "agg": agg, "windows": windows}


def job_and_streams() -> tuple[mp.Job, mp.StreamBuilder[None, int], mp.KeyedStreamBuilder[int, int]]:
    job = mp.Job("docs")
    numbers = job.source("numbers", sources.Memory([1, 2]))
    return job, numbers, numbers.key_by("key", lambda number: number)


@pytest.mark.parametrize("of", TABLES)
def test_an_answer_names_a_page_and_a_heading_that_are_there(of: str) -> None:
    for says, page in set(TABLES[of][0].values()):
        path, _, anchor = page_path(page).partition("#")
        text = (ROOT / "docs" / path).read_text()
        assert not anchor or anchor in anchors_of(text), (says, page)


@pytest.mark.parametrize("of", TABLES)
def test_an_answer_names_only_what_is_there(of: str) -> None:
    for says, _ in set(TABLES[of][0].values()):
        for name in re.findall(r"(?:^|\s)\.(\w+)\(", says):
            assert hasattr(mp.KeyedStreamBuilder, name), says
        for module, name in re.findall(r"\b(mp|sources|sinks|agg|windows)\.(\w+)\b", says):
            assert hasattr(HERE[module], name), says


@pytest.mark.parametrize("of", TABLES)
def test_a_name_of_the_table_is_none_of_ours(of: str) -> None:
    table, owners = TABLES[of]
    ours = {name for owner in owners for name in dir(owner) if not isinstance(getattr(owner, name), ModuleType)}
    assert ours & table.keys() == set()
    assert all(name == name.replace("_", "").lower() for name in table)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tumbling_window", "here it is .key_by(…), then .window('name', windows.tumbling(…))"),
        ("cogroup", "here it is .key_by(…) on both streams, then left.join('name', right,"),
        ("partition_by", "here it is .key_by('name', key), see docs/operators/keyed.md#key_by"),
        ("groupBy", "here it is .group_by(…)"),
        ("withWatermark", "here it is .with_watermark(…)"),
        ("print", "here it is .inspect('name', print), or .sink('name', sinks.Stdout()) at the end"),
        ("to_topic", "a stream ends by .sink('name', sink)"),
        ("fold_window", "here it is .key_by(…), then .window("),
        ("process", "here it is .stateful_op('name', logic)"),
    ],
)
def test_a_stream_answers_names_of_others(name: str, said: str) -> None:
    for stream in job_and_streams()[1:]:
        with pytest.raises(AttributeError, match=f"Builder has no method {name!r}: {re.escape(said)}") as raised:
            getattr(stream, name)
        assert raised.value.name == name
        assert not hasattr(stream, name)


def test_a_job_answers_them_and_sends_steps_to_its_streams() -> None:
    job = job_and_streams()[0]
    with pytest.raises(AttributeError, match="a stream begins by job"):
        job.dataframe  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="Job has no method 'map': steps are methods of a stream"):
        job.map  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="a job is run by mp"):
        job.run()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("malstrom_py", "Dataflow", "here it is mp.Job('name'), see docs/api.md"),
        ("malstrom_py", "StreamExecutionEnvironment", "here it is mp.Job('name'), see docs/api.md"),
        ("malstrom_py.sources", "KafkaSource", "here it is sources.Kafka(bootstrap, topics), see docs/connectors"),
        ("malstrom_py.sources", "Kinesis", "there is no connector for it; write your own source: a class"),
        ("malstrom_py.sources", "CSVSource", "here it is sources.Files(pattern), see docs/files.md"),
        ("malstrom_py.sinks", "KinesisSink", "there is no connector for it; write your own sink: a class"),
        ("malstrom_py.sinks", "StdOutSink", "here it is sinks.Stdout()"),
    ],
)
def test_modules_answer_them_also_where_a_name_is_imported(module: str, name: str, said: str) -> None:
    loaded = importlib.import_module(module)
    with pytest.raises(AttributeError, match=re.escape(f"module {module!r} has no attribute {name!r}: {said}")):
        getattr(loaded, name)
    assert not hasattr(loaded, name)
    with pytest.raises(ImportError, match=re.escape(f"cannot import name {name!r} from {module!r}: {said}")):
        exec(f"from {module} import {name}", {})


def test_another_name_is_answered_as_python_does() -> None:
    _, stream, keyed = job_and_streams()
    for thing, name, near in ((stream, "fliter", "filter"), (keyed, "cuont", "count"), (sources, "Fles", "Files")):
        with pytest.raises(AttributeError, match=name) as raised:
            getattr(thing, name)
        # Of these the interpreter makes "Did you mean: …?" where the error is not caught.
        assert (raised.value.name, raised.value.obj) == (name, thing)
        assert near in dir(thing)
    with pytest.raises(ImportError, match=r"cannot import name 'Fles' from 'malstrom_py.sources' \("):
        exec("from malstrom_py.sources import Fles", {})


def test_what_asks_for_attributes_by_itself_is_not_led_astray() -> None:
    job, stream, _ = job_and_streams()
    assert copy.copy(job).name == copy.deepcopy(job).name == "docs"
    assert repr(pickle.loads(cloudpickle.dumps(stream))) == repr(stream)
    assert getattr(stream, "__wrapped__", None) is getattr(job, "_repr_png_", None) is None
    assert answer(STREAM, "_window") == ""
    exec("from malstrom_py import cli, testing", {})
    assert "tumbling" not in dir(stream)
    assert "Kinesis" not in dir(sources)


def test_no_answer_promises_what_is_not_there() -> None:
    named = {method for says, _ in STREAM.values() for method in re.findall(r"(?:^|[ ,])\.(\w+)\(", says)}
    assert {"window", "key_by", "map"} <= named
    assert [method for method in sorted(named) if not hasattr(mp.KeyedStreamBuilder, method)] == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("flatMap", ": here it is .flat_map(…)"),
        ("flatmap", ": here it is .flat_map(…)"),
        ("keyBy", ": here it is .key_by(…)"),
        ("to_list", ": here it is mp.collect(stream), see docs/operators/sources-and-sinks.md#mpcollect"),
        ("toList", ": here it is mp.collect(stream), see docs/operators/sources-and-sinks.md#mpcollect"),
    ],
)
def test_any_spelling_of_a_step_is_answered(name: str, said: str) -> None:
    _, stream, keyed = job_and_streams()
    for thing in (stream, keyed):
        with pytest.raises(AttributeError, match=re.escape(f"has no method {name!r}{said}")):
            getattr(thing, name)
