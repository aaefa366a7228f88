"""A run that would block an event loop is refused immediately; a notebook cell runs one."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable
from types import CodeType
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError

KERNEL = """
async def run_cell(code, names):
    outcome = eval(code, names)
    return await outcome if inspect.iscoroutine(outcome) else outcome
"""


def job(name: str = "a") -> mp.Job:
    made = mp.Job(name)
    made.source("in", sources.Memory([1, 2])).sink("out", sinks.Memory())
    return made


CALLS: dict[str, Callable[[], Any]] = {
    "mp.run": lambda: mp.run(job()),
    "mp.collect": lambda: mp.collect(mp.Job("a").source("in", sources.Memory([1, 2]))),
    "InProcess.run": lambda: mp.InProcess().run(job()),
    "RayRuntime.run": lambda: mp.RayRuntime().run(job()),
}


@pytest.mark.parametrize("function", CALLS)
def test_in_a_coroutine_it_is_refused_and_start_is_named(function: str) -> None:
    async def main() -> None:
        CALLS[function]()

    loaded, runtime = "ray" in sys.modules, "RayRuntime" if function == "RayRuntime.run" else "InProcess"
    with pytest.raises(
        PlanError, match=rf"^{function} blocks the event loop.* handle = mp\.{runtime}\(…\)\.start\(job\)"
    ):
        asyncio.run(main())
    assert ("ray" in sys.modules) is loaded, "nothing was begun"


def test_in_a_callback_of_a_loop_it_is_refused() -> None:
    told: list[BaseException] = []

    def call() -> None:
        try:
            mp.run(job())
        except PlanError as error:
            told.append(error)

    async def main() -> None:
        asyncio.get_running_loop().call_soon(call)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert len(told) == 1


def test_what_it_says_to_do_works_there() -> None:
    async def main() -> tuple[int, int]:
        handle = mp.InProcess().start(job(), control=False)
        first = await asyncio.to_thread(handle.wait)
        second = await asyncio.to_thread(mp.run, job())
        return first.read, second.read

    assert asyncio.run(main()) == (2, 2)


def in_a_notebook(source: str) -> Any:
    """The result of a cell, run as the kernel of a notebook runs it: inside its loop, by a separate coroutine."""
    kernel: dict[str, Any] = {"__name__": "IPython.core.interactiveshell", "inspect": inspect}
    exec(KERNEL, kernel)
    run_cell: Callable[[CodeType, dict[str, Any]], Awaitable[Any]] = kernel["run_cell"]
    code = compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"__name__": "__main__", "mp": mp, "job": job, "asyncio": asyncio}

    async def main() -> None:
        await run_cell(code, names)

    asyncio.run(main())
    return names["result"]


@pytest.mark.parametrize(
    "cell",
    [
        "result = mp.run(job()).read",
        "def helper():\n    return mp.run(job())\nresult = [helper() for _ in range(1)][0].read",
        "await asyncio.sleep(0)\nresult = mp.run(job()).read",
        "async def main():\n    return await asyncio.to_thread(mp.run, job())\nresult = (await main()).read",
    ],
)
def test_a_cell_of_a_notebook_runs_a_job(cell: str) -> None:
    assert in_a_notebook(cell) == 2


def test_a_coroutine_that_a_cell_awaits_is_refused() -> None:
    with pytest.raises(PlanError, match=r"mp\.run blocks the event loop"):
        in_a_notebook("async def main():\n    return mp.run(job())\nresult = await main()")
