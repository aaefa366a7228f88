"""The answers to unknown names: names from other stream processors, and their equivalent here.

Rule: a name of these tables is not defined in this package. Using it raises the usual error of an unknown name, with
the equivalent and the page that describes it.
"""

from __future__ import annotations

import sys
from typing import Any, Final

_WINDOWS: Final = ".key_by(…), then .window('name', windows.tumbling(…)), or sliding, session, count"
_JOINS: Final = (
    ".key_by(…) on both streams, then left.join('name', right, window=windows.tumbling(…)), .join_interval, .join_asof "
    "or .join_table"
)
_FINALS: Final = "take a running step, then .final(), which sends the last value of each key at the end"
_SINK: Final = "a stream ends by .sink('name', sink), with one of malstrom_py.sinks"
_SOURCE: Final = "a stream begins by job.source('name', source), with one of malstrom_py.sources"
_PRINT: Final = ".inspect('name', print), or .sink('name', sinks.Stdout()) at the end"
_TIMES: Final = ".assign_timestamps(…), and .generate_epochs(…) for watermarks"
_RUN: Final = "a job is run by mp.run(job), or begun by mp.InProcess().start(job)"
_TO_FILES: Final = ".sink('name', sinks.Files(folder, format='parquet'))"
_SORTED: Final = (
    "a stream has no last record, so sort the values of a window, .window('name', …).collect(), or take the largest "
    "of a key by .top_n('name', n)"
)
_SIZE: Final = "the runtime has the number of workers: mp.run(job, workers=4), handle.rescale(8)"
_SNAPSHOTS: Final = "the runtime makes snapshots: mp.run(job, snapshots=mp.Snapshots(uri))"
STEPS: Final = "steps are methods of a stream, which job.source('name', source) gives"
_NAMES: Final = "the name is the first argument of each step"
_LOGIC: Final = "state is kept by a logic of .stateful_op(…), per key"
_CONNECTOR: Final = "there is no connector for it"

_MIGRATING: Final = "migrating-from-bytewax.md"
_ENDS: Final = "operators/sources-and-sinks.md"
_KAFKA: Final = "connectors/kafka.md"


def _all(names: str, says: str, page: str) -> dict[str, tuple[str, str]]:
    return dict.fromkeys(names.split(), (says, page))


STREAM: Final = {
    **_all("windowby windowed windowall timewindow countwindow tumbling tumblingwindow", _WINDOWS, "windows.md"),
    **_all("hopping hoppingwindow sliding slidingwindow collectwindow foldwindow", _WINDOWS, "windows.md"),
    **_all("reducewindow maxwindow minwindow joinwindow windowfold", _WINDOWS, "windows.md"),
    **_all("session sessions sessionwindow", _WINDOWS, "windows.md"),
    **_all(
        "joinlatest asofjoin intervaljoin tablejoin temporaljoin lookuptable cogroup connect zip", _JOINS, "joins.md"
    ),
    **_all("lookup lookupjoin joinlookup asyncmap mapasync asyncwait", ".enrich(…) on a keyed stream", "enrich.md"),
    **_all("foldfinal reducefinal countfinal maxfinal minfinal", _FINALS, "operators/stateful.md#final"),
    **_all("groupbykey partitionby keyon rekey", ".key_by('name', key)", "operators/keyed.md#key_by"),
    **_all(
        "keyrm unkey dropkeys",
        "values never contain the key",
        "operators/keyed.md#getting-rid-of-keys",
    ),
    **_all("merge concat", ".union('name', *streams)", "operators/stateless.md#union"),
    **_all("print printtable debug inspectdebug peek show tap", _PRINT, "operators/stateless.md#inspect"),
    **_all("totopic to into output write writeto addsink sinkto through", _SINK, _ENDS),
    **_all("apply mapvalue mapvalues transform", ".map('name', fn)", "operators/stateless.md#map"),
    **_all("update", ".map('name', fn), which returns a new value", "operators/stateless.md#map"),
    **_all("tolist aslist tolists toarray", "mp.collect(stream)", f"{_ENDS}#mpcollect"),
    **_all("foreach", ".inspect('name', fn)", "operators/stateless.md#inspect"),
    **_all("filtervalue where drop", ".filter('name', predicate)", "operators/stateless.md#filter"),
    **_all("flatmapvalue expand explode", ".flat_map('name', fn)", "operators/stateless.md#flat_map"),
    **_all("filtermapvalue", ".filter_map('name', fn)", "operators/stateless.md#filter_map"),
    **_all("flatmapbatch mapbatch mappartition", ".map_batches('name', fn)", "operators/stateless.md#map_batches"),
    **_all("withcolumn assign rename fillnull", ".with_columns(…)", "operators/stateless.md#with_columns"),
    **_all("process stateful statefulbatch", ".stateful_op('name', logic)", "operators/stateful.md#stateful_op"),
    **_all("scan accumulate", ".stateful_map(…) or .fold(…)", "operators/stateful.md#stateful_map"),
    **_all("deduplicate dedup dropduplicates", ".distinct('name') of a keyed stream", "operators/stateful.md#distinct"),
    **_all("assigntimestampsandwatermarks assignwatermarks settimestamp withwatermarks", _TIMES, "event-time.md"),
    **_all("watermark", _TIMES, "event-time.md"),
    **_all("sideoutput getsideoutput", ".stateful_op(…, sides=[…])", "operators/stateful.md#stateful_op"),
    **_all("rebalance shuffle repartition broadcast setparallelism", _SIZE, "running.md#more-workers-or-fewer"),
    **_all("uid name", _NAMES, "concepts.md#jobs-steps-and-streams"),
    **_all("run execute start", _RUN, "running.md"),
    **_all("sort sorted sortby orderby", _SORTED, "windows.md#what-is-computed"),
    **_all("topandas topolars toarrow topd todf", "mp.collect(stream)", f"{_ENDS}#mpcollect"),
    **_all("toparquet tocsv tojson writeparquet writecsv writejson sinkparquet sinkcsv", _TO_FILES, "files.md#writing"),
}
"""Names on a stream, as `_plain` writes them. A page is a file of docs/, or a heading of the page on bytewax."""

JOB: Final = {
    **_all("dataframe sdf fromsource addsource input fromcollection readtextfile stream topic agent", _SOURCE, _ENDS),
    **_all("table from addstream read subscribe", _SOURCE, _ENDS),
    **_all("sink output addsink sinkto", _SINK, _ENDS),
    **_all("run execute executeasync start runasync main", _RUN, "running.md"),
    **_all("setparallelism workers rescale", _SIZE, "running.md#more-workers-or-fewer"),
    **_all("enablecheckpointing checkpoint snapshot recovery", _SNAPSHOTS, "snapshots.md"),
    **_all("stop status wait", "the handle of a job that runs: mp.InProcess().start(job)", "running.md"),
}
"""Names on a job."""

MODULE: Final = {
    **_all("dataflow application app streamexecutionenvironment topology pipeline flow", "mp.Job('name')", "api.md"),
    **_all("stream keyedstream datastream streamingdataframe", STEPS, "concepts.md#jobs-steps-and-streams"),
    **_all("op map filter flatmap keyby groupby inspect", STEPS, "concepts.md#jobs-steps-and-streams"),
    **_all("input source kafkasource filesource testingsource", _SOURCE, _ENDS),
    **_all("output sink kafkasink filesink stdoutsink testingsink", _SINK, _ENDS),
    **_all("runmain climain clustermain execute main", _RUN, "running.md"),
    **_all("recoveryconfig checkpointconfig", _SNAPSHOTS, "snapshots.md"),
    **_all("kafka topic", "sources.Kafka(bootstrap, topics) and sinks.Kafka(bootstrap, topic)", _KAFKA),
    **_all("connectors", f"{_CONNECTOR}; own sources and sinks are classes with few methods", _ENDS),
    **_all("window windowing tumblingwindower slidingwindower", _WINDOWS, "windows.md"),
    **_all("tumblingwindow hoppingwindow slidingwindow tumbling hopping", _WINDOWS, "windows.md"),
    **_all("sessionwindower sessionwindow", _WINDOWS, "windows.md"),
    **_all("join", _JOINS, "joins.md"),
    **_all("eventclock systemclock watermarkstrategy", _TIMES, "event-time.md"),
    **_all("state valuestate table processfunction keyedprocessfunction", _LOGIC, "custom-operators.md"),
    **_all("visualize", "job.explain() and job.to_mermaid()", "api.md"),
}
"""Names in the package `malstrom_py`."""

_OWN_SOURCE: Final = f"{_CONNECTOR}; write your own source: a class with list_parts and build_part"
_OWN_SINK: Final = f"{_CONNECTOR}; write your own sink: a class with few methods"
_BROKERS: Final = (
    "kinesis pulsar rabbitmq redis mqtt nats sqs pubsub socket websocket http sse "
    "mysql sql database jdbc mongodb elasticsearch influxdb clickhouse duckdb snowflake bigquery"
)
_FILES: Final = "csv json jsonl parquet text file folder directory local localfile dir"
_SPARK: Final = "hive table dataframe"


def _both(names: str, kind: str) -> str:
    return " ".join(f"{name} {name}{kind}" for name in names.split())


SOURCES: Final = {
    **_all(_both(_BROKERS, "source"), _OWN_SOURCE, f"{_ENDS}#own-sources"),
    **_all(_both("redis redisstreams", "source"), "sources.RedisStream(url, streams)", "connectors/redis.md"),
    **_all(_both("nats natsjetstream", "source"), "sources.JetStream(servers, stream)", "connectors/nats.md"),
    **_all("postgressource postgresql postgresqlsource", "sources.Postgres(dsn, table)", "connectors/postgres.md"),
    **_all("postgrescdc debezium debeziumsource cdc", "sources.PostgresChanges(…)", "connectors/postgres.md#changes"),
    **_all("kafkasource redpanda redpandasource", "sources.Kafka(bootstrap, topics)", _KAFKA),
    **_all(_both(_FILES, "source"), "sources.Files(pattern)", "files.md"),
    **_all(_both(_SPARK, "source"), "sources.Spark(…)", "spark.md"),
    **_all("ray raydata raydatasource raysource", "sources.RayDataset(ds)", "ray.md#ray-data-at-both-ends"),
    **_all("delta deltasource deltalake", "sources.Delta(uri)", "connectors/lake.md"),
    **_all("iceberg icebergsource", "sources.Iceberg(table)", "connectors/lake.md"),
    **_all("testingsource list collection iterable fromcollection sequence", "sources.Memory(items)", _ENDS),
    **_all("randommetricsource datagen range interval timer stdin iterator", "sources.Generator(fn)", _ENDS),
    **_all("dynamicsource simplepollingsource", "sources.StatelessSource", f"{_ENDS}#own-sources"),
    **_all("fixedpartitionedsource source", "sources.PartitionedSource", f"{_ENDS}#own-sources"),
}
"""Names in the module of sources."""

SINKS: Final = {
    **_all(_both(_BROKERS, "sink"), _OWN_SINK, f"{_ENDS}#own-sinks"),
    **_all(_both("redis redisstreams", "sink"), "sinks.RedisStream(url, stream)", "connectors/redis.md#writing"),
    **_all("postgressink postgresql postgresqlsink", "sinks.Postgres(dsn, table)", "connectors/postgres.md"),
    **_all("kafkasink redpanda redpandasink", "sinks.Kafka(bootstrap, topic)", _KAFKA),
    **_all(_both(_FILES, "sink"), "sinks.Files(folder)", "files.md#writing"),
    **_all(_both(_SPARK, "sink"), "sinks.Spark(…)", "spark.md"),
    **_all("ray raydata raydatasink raysink", "sinks.RayDataset()", "ray.md#ray-data-at-both-ends"),
    **_all("delta deltasink deltalake", "sinks.Delta(uri)", "connectors/lake.md"),
    **_all("iceberg icebergsink", "sinks.Iceberg(table)", "connectors/lake.md"),
    **_all("print console printsink stdoutsink", "sinks.Stdout()", f"{_ENDS}#sinksstdout"),
    **_all("testingsink list collection", "sinks.Memory()", f"{_ENDS}#sinksmemory"),
    **_all("function lambda foreach foreachsink", "sinks.Callable(fn)", f"{_ENDS}#sinkscallable"),
    **_all("dynamicsink", "sinks.StatelessSink", f"{_ENDS}#own-sinks"),
    **_all("fixedpartitionedsink sink", "sinks.PartitionedSink", f"{_ENDS}#own-sinks"),
}
"""Names in the module of sinks."""

AGG: Final = {
    **_all("avg average", "agg.mean(by)", "api.md"),
    **_all("len size nrows length", "agg.count()", "api.md"),
    **_all("stdev stddev", "agg.std(by)", "api.md"),
    **_all("countdistinct approxcountdistinct distinct unique", "agg.n_unique(by)", "api.md"),
}
"""Names in the module of aggregates."""

WINDOWS: Final = {
    **_all("tumble tumblingwindow tumblingwindows fixed", "windows.tumbling(size)", "windows.md"),
    **_all("hop hopping slide slidingwindow slidingwindows", "windows.sliding(size, step)", "windows.md"),
    **_all("sessions sessionwindow sessionwindows", "windows.session(gap)", "windows.md"),
}
"""Names in the module of windows."""

Table = dict[str, tuple[str, str]]


def answer(table: Table, name: str) -> str:
    """Return the answer of ``table`` to ``name``, in any spelling, as the end of a message; "" if it has none.

    >>> answer(STREAM, "keyOn")
    ": here it is .key_by('name', key), see docs/operators/keyed.md#key_by"
    """
    found = None if name.startswith("_") else table.get(_plain(name))
    if found is None:
        return ""
    says, page = found
    begins = "here it is " if says.startswith((".", "mp.", "sources.", "sinks.", "agg.", "windows.")) else ""
    return f": {begins}{says}, see docs/{page_path(page)}"


def page_path(page: str) -> str:
    """Return the path of the page of an entry."""
    if ".md" in page:
        return page
    return f"{_MIGRATING}#{page}"


def unknown_attribute(thing: Any, name: str, table: Table) -> AttributeError:
    """Return the error for an unknown method, with the answer of ``table`` or the right spelling."""
    hint = answer(table, name) or _other_spelling(type(thing), name)
    return AttributeError(f"{type(thing).__name__} has no method {name!r}{hint}", name=name, obj=thing)


def _other_spelling(kind: type, name: str) -> str:
    """Return the method of ``kind`` with another spelling, ``flat_map`` for ``flatMap``; "" if it has none."""
    if name.startswith("_"):
        return ""
    own = next((one for one in dir(kind) if not one.startswith("_") and _plain(one) == _plain(name)), None)
    return "" if own is None else f": here it is .{own}(…)"


def unknown_name(module: str, name: str, table: Table) -> Exception:
    """Return the error of a module's ``__getattr__`` for an unknown name, with the answer of ``table``.

    It is an AttributeError, but ``from module import name`` would replace the text of that: with an answer, such an
    import gets an ImportError. Call this directly in ``__getattr__``: it inspects the calling frame.
    """
    hint = answer(table, name)
    text = f"module {module!r} has no attribute {name!r}{hint}"
    if hint and _is_imported_by(sys._getframe(2)):
        return ImportError(f"cannot import name {name!r} from {module!r}{hint}", name=module)
    return AttributeError(text, name=name, obj=sys.modules.get(module))


def _is_imported_by(frame: Any) -> bool:
    """Whether ``frame`` is at a ``from … import …``."""
    import dis  # it is slow to import, and needed for a mistake only

    return bool(frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"])


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
