"""What a running job answers to those who command it from elsewhere, however they reach it.

Rule: it touches the run through `Controls` alone, and whatever happens there is an answer, never an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from malstrom_py.errors import InternalError, MalstromError
from malstrom_py.workers.control_messages import (
    Answer,
    Ask,
    AskRescale,
    AskSnapshot,
    AskStatus,
    AskStop,
    AskWait,
    Done,
    SnapshotMade,
)
from malstrom_py.workers.controls import Controls
from malstrom_py.workers.in_progress import in_progress
from malstrom_py.workers.rescale_report import RescaleReport


def answering(controls: Controls) -> Callable[[Ask], Awaitable[Answer]]:
    """Whoever answers for the run behind ``controls``."""
    return lambda ask: answer_to(ask, controls)


async def answer_to(ask: Ask, controls: Controls) -> Answer:
    """The answer to ``ask``, once there is one, or once its ``timeout_s`` is over."""
    try:
        match ask:
            case AskStatus():
                status = controls.status()
                return status.result() if await _settled(status, ask.timeout_s) else controls.known()
            case AskRescale():
                return await _rescaled(ask, controls)
            case AskSnapshot():
                return await _saved(ask, controls)
            case AskStop():
                return await _stopped(ask, controls)
            case AskWait():
                return await _waited(ask, controls)
    except MalstromError as error:
        return error
    except Exception as error:
        return InternalError(f"whoever answers for job {controls.job!r} met {type(error).__name__}")


async def _rescaled(ask: AskRescale, controls: Controls) -> Answer:
    asked = controls.rescale(ask.size)
    awaited: Future[RescaleReport] | Future[None] = asked.done if ask.wait else asked.taken
    if not await _settled(awaited, ask.timeout_s):
        return in_progress(controls.job, "rescale", ask.timeout_s)
    return awaited.result() or Done()


async def _saved(ask: AskSnapshot, controls: Controls) -> Answer:
    done = controls.save(ask.uri).done
    if not await _settled(done, ask.timeout_s):
        return in_progress(controls.job, "snapshot" if ask.uri is None else "savepoint", ask.timeout_s)
    return SnapshotMade(done.result())


async def _stopped(ask: AskStop, controls: Controls) -> Answer:
    ended = controls.stop(drain=ask.drain)
    if ask.wait and not await _settled(ended, ask.timeout_s):
        return in_progress(controls.job, "stop", ask.timeout_s)
    if ended.done():
        ending = ended.result()
        if ending.how == "failed":
            return ending.told() or Done()
        last = ending.stopped(drain=ask.drain, kept=controls.kept)
        return Done() if last is None else SnapshotMade(last)
    return Done()


async def _waited(ask: AskWait, controls: Controls) -> Answer:
    if not await _settled(controls.ended, ask.timeout_s):
        return in_progress(controls.job, "run", ask.timeout_s or 0.0)
    ending = controls.ended.result()
    return ending.told() or ending.counts


async def _settled(future: Future[Any], timeout_s: float | None) -> bool:
    """Whether ``future`` is answered, be it by an error, within ``timeout_s``. Who gives up cancels nothing."""
    loop, settled = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(settled.set)
        except RuntimeError:
            """The loop has been closed, and nobody waits any more."""

    future.add_done_callback(tell)
    try:
        async with asyncio.timeout(timeout_s):
            await settled.wait()
    except TimeoutError:
        return future.done()
    return True
