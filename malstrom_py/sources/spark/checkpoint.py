"""``SparkCheckpoint``: the keyed state of a stopped query of Spark, read through Spark's own state data source."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.clock import SystemClock
from malstrom_py.errors import PlanError, SourceError, lasting
from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.session import spark_session
from malstrom_py.spark.types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_VALUE: Final = {"ValueState": "value", "ListState": "list_element", "MapState": "user_map_value"}
"""The kind of a variable of ``transformWithState`` -> the column with its values."""

_GROUPS: Final = ("applyInPandasWithState", "flatMapGroupsWithState")


class SparkCheckpoint:
    """The state of a stopped Structured Streaming query as rows of (key, state), for ``initial_state=``.

    ``path``: the query's ``checkpointLocation``. ``operator``: the number of the operator with state, as in
    ``spark.read.format("state-metadata")``; 0 for a query with one. ``variable``: a state variable of a query with
    ``transformWithState``; by default all of them, as a dict, name -> value. ``session``: as of `Spark`.

    A key of one column is its value, of several columns a tuple in their order; a struct in a key, such as the window
    of an aggregation, is a tuple, too. A state is a dict, field -> value, as Spark stores it: of an aggregation the
    buffers, such as ``count`` and ``sum`` of an average. A field whose name occurs again is ``count_2``, ``count_3``.
    A list variable is a list of dicts; a map variable a dict, whose keys are formed as above. Values that have expired
    by the time to live are left out. Timers are not read.

    The state is that of the last batch that the query has committed. Each iteration reads it again, into memory.

    SourceError: there is no checkpoint, the query runs in this session, there is no such operator or variable, or Spark
    cannot read it. SparkError: Spark cannot be used. PlanError: an argument is wrong.

    >>> SparkCheckpoint("/checkpoints/totals")
    SparkCheckpoint('/checkpoints/totals', operator=0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        operator: int = 0,
        variable: str | None = None,
        session: SparkSession | None = None,
    ) -> None:
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if not isinstance(text, str) or not text:
            raise PlanError(f"sources.SparkCheckpoint: path must be the checkpointLocation of a query, got {path!r}")
        if type(operator) is not int or operator < 0:
            raise PlanError(f"sources.SparkCheckpoint: operator must be an int of at least 0, got {operator!r}")
        if variable is not None and not (isinstance(variable, str) and variable):
            raise PlanError(f"sources.SparkCheckpoint: variable must be the name of a state variable, got {variable!r}")
        # Spark's own working directory is where its JVM was started.
        self._path = text if re.match(r"/|[A-Za-z][A-Za-z0-9+.-]*:", text) else str(Path.cwd() / text)
        self._operator, self._variable, self._session = operator, variable, session

    def __repr__(self) -> str:
        variable = "" if self._variable is None else f", variable={self._variable!r}"
        return f"SparkCheckpoint({self._path!r}, operator={self._operator}{variable})"

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Read the state and iterate over (key, state)."""
        with spark_session(self._session) as session, spark_errors(f"Spark cannot read {self}", SourceError):
            self._check_stopped(session)
            found = self._operator_in(session)
            variables = _variables_of(found)
            if variables is None:
                if self._variable is not None:
                    raise self._refusal(f"{found['operatorName']} has no state variables: leave out variable=")
                yield from self._plain(session, is_group=found["operatorName"].startswith(_GROUPS))
                return
            if self._variable is not None:
                if self._variable not in variables:
                    raise self._refusal(f"there is no state variable {self._variable!r}, only {', '.join(variables)}")
                yield from self._states_of(session, self._variable, variables[self._variable]).items()
                return
            states: dict[Any, dict[str, Any]] = {}
            for name, about in variables.items():
                for key, state in self._states_of(session, name, about).items():
                    states.setdefault(key, {})[name] = state
            yield from states.items()

    def _refusal(self, why: str) -> SourceError:
        return lasting(SourceError(f"{self}: {why}"))

    def _check_stopped(self, session: Any) -> None:
        """Raise `SourceError` if there is no checkpoint, or its query is active in ``session``."""
        with spark_errors(f"{self}: there is no checkpoint of a query at {self._path}", SourceError):
            text = "".join(row[0] for row in session.read.text(f"{self._path}/metadata").collect())
        try:
            query = json.loads(text)["id"]
        except (ValueError, KeyError, TypeError):
            raise self._refusal(f"{self._path}/metadata is not that of a query's checkpoint") from None
        if query in {str(active.id) for active in session.streams.active}:
            raise self._refusal(f"query {query} is running: stop it, so that its state is final")

    def _operator_in(self, session: Any) -> dict[str, Any]:
        """Return the row of "state-metadata" of the operator."""
        rows: list[dict[str, Any]] = [
            row.asDict() for row in session.read.format("state-metadata").load(self._path).collect()
        ]
        found = [row for row in rows if row["operatorId"] == self._operator]
        if not found:
            known = ", ".join(sorted({f"{row['operatorId']} ({row['operatorName']})" for row in rows}))
            raise self._refusal(f"the query has no operator {self._operator} with state, only {known or 'none'}")
        if [row["stateStoreName"] for row in found] != ["default"]:
            raise self._refusal(f"the state of {found[0]['operatorName']} is not one row per key: it cannot be read")
        return found[0]

    def _read(self, session: Any, **options: Any) -> Iterator[dict[str, Any]]:
        """Iterate over the rows of the state data source, as dicts without repeated names."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        reader = session.read.format("statestore").option("operatorId", self._operator)
        frame = reader.options(**options).load(self._path).drop("partition_id")
        unique = [F.col(field.name).cast(_unique(field.dataType)).alias(field.name) for field in frame.schema.fields]
        frame = frame.select(*unique)
        schema = arrow_schema(frame.schema)
        for batch in frame.toArrow().cast(schema).to_batches():
            yield from batch.to_pylist()

    def _plain(self, session: Any, *, is_group: bool) -> Iterator[tuple[Any, Any]]:
        for row in self._read(session):
            yield _key(row["key"]), row["value"]["groupState"] if is_group else row["value"]

    def _states_of(self, session: Any, name: str, about: dict[str, Any]) -> dict[Any, Any]:
        """Return key -> value of one state variable of ``transformWithState``."""
        kind, now_ms = about["stateVariableType"], SystemClock().now_s() * 1000
        states: dict[Any, Any] = {}
        for row in self._read(session, stateVarName=name):
            key, value = _key(row["key"]), row[_VALUE[kind]]
            if about["ttlEnabled"]:
                if value["ttlExpirationMs"] <= now_ms:
                    continue
                value = value["value"]
            if kind == "ListState":
                states.setdefault(key, []).append(value)
            elif kind == "MapState":
                states.setdefault(key, {})[_key(row["user_map_key"])] = value
            else:
                states[key] = value
        return states


def _variables_of(operator: dict[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return the state variables of an operator, by name; None if it is not ``transformWithState``."""
    properties = json.loads(operator["operatorProperties"] or "{}")
    if "stateVariables" not in properties:
        return None
    known = (one for one in properties["stateVariables"] if one["stateVariableType"] in _VALUE)
    return {one["stateName"]: one for one in known if not one["stateName"].startswith("$")}


def _unique(kind: Any) -> Any:
    """Return the type ``kind``; in a struct the second field ``n`` is ``n_2``, as aggregates repeat names."""
    if type(kind).__name__ != "StructType":
        return kind
    struct: StructType = kind
    names = {field.name for field in struct.fields}
    made: StructType = type(struct)([])
    for field in struct.fields:
        name = field.name
        if name in made.names:
            name = next(other for number in count(2) if (other := f"{field.name}_{number}") not in names)
            names.add(name)
        made = made.add(name, _unique(field.dataType), field.nullable)
    return made


def _key(struct: dict[str, Any]) -> Any:
    """Return a key: the value of its one column, or the values of several as a tuple."""
    values = tuple(map(_hashable, struct.values()))
    return values[0] if len(values) == 1 else values


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(map(_hashable, value.values()))
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
