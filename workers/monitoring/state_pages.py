"""Values for the dashboard's server: the state of steps, by key and by SQL, records that pass, and in what a shadow
differs. Values are data, so only where they are allowed.

Rule: each answer is bounded in time, in memory and in its rows.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from malstrom_py.codec.job_codec import without_classes
from malstrom_py.snapshot.typed_columns import json_text
from malstrom_py.windows import WindowResult
from malstrom_py.workers.control.tap import LOOK_S, record_of
from malstrom_py.workers.reports.commands import RunningJob, ShadowCommand, TapCommand
from malstrom_py.workers.reports.shadows import ShadowReport
from malstrom_py.workers.reports.taps import TapPage

T = TypeVar("T")

ROWS_MAX: Final = 10_000
"""The largest number of rows of an answer."""

BYTES_MAX: Final = 8 << 20
"""About the largest size of an answer: a job may run in this process."""

SECONDS_MAX: Final = 30.0

RECORDS: Final = 20
"""The largest number of records of an answer."""


def state_page(job: RunningJob, step: str, key: str) -> dict[str, Any] | None:
    """Return the state of ``key``, JSON or else a text, in ``step``; None if it has none."""
    from malstrom_py.workers.control.step_state import SnapshotReader, StepState

    state = StepState(SnapshotReader.of_job(job.ask, timeout_s=SECONDS_MAX), step)
    wanted = _key(key)
    found = state.get(wanted)
    if found is None:
        return None
    if isinstance(found, list):
        found = [one._asdict() if type(one) is WindowResult else one for one in found]
    return _plain({"step": step, "key": wanted, "snapshot": state.snapshot, "state": found})


def query_page(job: RunningJob, sql: str, over: threading.Event) -> dict[str, Any]:
    """Return the rows of a query for the state of steps, at most `ROWS_MAX` and `BYTES_MAX`, and the number of all.
    ``over``: set once no client waits for them.
    """
    from malstrom_py.workers.control.state_query import ROWS, SNAPSHOT, Limits, query, rows_in
    from malstrom_py.workers.control.step_state import SnapshotReader

    limits = Limits(SECONDS_MAX, ROWS_MAX, BYTES_MAX, over)
    found = query(SnapshotReader.of_job(job.ask, timeout_s=SECONDS_MAX), sql, limits)
    of = found.schema.metadata
    return _plain({"snapshot": of[SNAPSHOT].decode(), "rows": rows_in(found), "rows_all": int(of[ROWS])})


def tap_page(job: RunningJob, step: str, log: str, after: str) -> dict[str, Any]:
    """Return the last records that ``step`` has emitted since number ``after`` of tap ``log``, a line each."""
    number = int(after) if after.isascii() and after.isdigit() else 0
    page: TapPage = job.ask(TapCommand(step[:64], LOOK_S, after=min(number, 1 << 60), log=log[:64]))
    codec = without_classes()
    lines = [str(record_of(row, codec)) for row in page.rows[-RECORDS:]]
    return {"step": step, "log": page.log, "after": page.after, "passed": page.passed, "records": lines}


def shadow_page(job: RunningJob, step: str) -> dict[str, Any]:
    """Return the last differences of ``step`` from its shadow, a line each."""
    report: ShadowReport = job.ask(ShadowCommand(step[:64], LOOK_S))
    return {"step": step, "pairs": [str(pair) for pair in report.pairs]}


def begun(work: Callable[[], T], threads: set[threading.Thread]) -> asyncio.Future[T]:
    """Begin ``work`` in a thread that no program waits for at its end. It is one of ``threads`` until it ends."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        done.set_result(result) if error is None else done.set_exception(error)

    def run() -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the server has closed
            loop.call_soon_threadsafe(settle, result, failure)
        threads.discard(threading.current_thread())

    thread = threading.Thread(target=run, name="malstrom-dashboard-values", daemon=True)
    threads.add(thread)
    thread.start()
    return done


def _key(text: str) -> Any:
    """Return the key that a path names: JSON, whose lists are tuples, else the text.

    >>> _key("attic"), _key("7"), _key('"7"'), _key('["a", 1]')
    ('attic', 7, '7', ('a', 1))
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return tuple(found) if isinstance(found, list) else text if isinstance(found, dict) else found


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    """Return types of JSON."""
    plain: dict[str, Any] = json.loads(json_text(answer))
    return plain
