"""Redis streams and NATS JetStream beside loops of their bare clients, on servers that are started for it.

Rule: a loop and a job make the same values of the same entries, and write the same fields.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib import metadata
from itertools import count
from typing import Any, Final

import malstrom_py as mp
from bench.micro import machine
from bench.micro.timing import interleave, ratios, spread
from malstrom_py import sinks, sources
from malstrom_py.connectors.redis.source import texts_of
from tests.servers import nats_server, redis_server

_CHUNK: Final = 500
_names = count()


def redis_loop(url: str, n: int) -> int:
    """Read ``n`` entries by ``XREAD``."""
    import redis

    rows: list[dict[str, str]] = []
    last = b"0-0"
    with closing(redis.Redis.from_url(url, protocol=2)) as client:
        while len(rows) < n:
            read: Any = client.xread({"in": last}, count=_CHUNK)
            entries = read[0][1]
            rows += [texts_of(id.decode(), fields) for id, fields in entries]
            last = entries[-1][0]
    return len(rows)


def redis_job(url: str, n: int) -> int:
    """Read ``n`` entries by a job."""
    source: sources.RedisStream[Any] = sources.RedisStream(url, "in")
    return len(mp.collect(mp.Job("bench").source("in", source), count=n))


def redis_append(url: str, rows: Sequence[dict[str, int]]) -> int:
    """Append ``rows`` by pipelines of ``XADD``."""
    import redis

    name = f"out-{next(_names)}"
    with closing(redis.Redis.from_url(url, protocol=2)) as client:
        for begin in range(0, len(rows), _CHUNK):
            with client.pipeline(transaction=False) as pipe:
                for row in rows[begin : begin + _CHUNK]:
                    pipe.xadd(name, row)  # type: ignore[arg-type]  # invariant in its types
                pipe.execute()
    return len(rows)


def redis_sink(url: str, rows: Sequence[dict[str, int]]) -> int:
    """Append ``rows`` by a job, exactly once."""
    job = mp.Job("bench")
    job.source("in", sources.Memory(rows)).sink("out", sinks.RedisStream(url, f"out-{next(_names)}"))
    return mp.run(job).written


def nats_loop(url: str, n: int) -> int:
    """Fetch ``n`` messages by a consumer."""
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig

    async def read() -> int:
        rows: list[Any] = []
        client = await nats.connect(url)
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        consumer = await client.jetstream().pull_subscribe(">", stream="in", config=config)
        while len(rows) < n:
            rows += [json.loads(message.data) for message in await consumer.fetch(_CHUNK)]
        await client.close()
        return len(rows)

    return asyncio.run(read())


def nats_job(url: str, n: int) -> int:
    """Read ``n`` messages by a job."""
    source: sources.JetStream[Any] = sources.JetStream(url, "in")
    return len(mp.collect(mp.Job("bench").source("in", source), count=n))


def fill_nats(url: str, rows: Sequence[dict[str, int]]) -> None:
    """Publish ``rows`` to the stream ``in``."""
    import nats

    async def fill() -> None:
        client = await nats.connect(url)
        js = client.jetstream()
        await js.add_stream(name="in", subjects=["in"])
        for row in rows:
            await client.publish("in", json.dumps(row).encode())
        await client.flush()
        await client.close()

    asyncio.run(fill())


def show(name: str, base: Callable[[Any], int], ours: Callable[[Any], int], data: Any, n: int, reps: int) -> None:
    """Measure and print one pair."""
    seconds = interleave({"base": base, "job": ours}, data, reps=reps)
    ratio = ratios(seconds["base"], seconds["job"])
    rate = spread([n / s / 1e3 for s in seconds["job"]])
    print(f"{name:24} {rate.show(1):>22} thousand rows/s  {ratio.show():>18} of the bare client")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.macro.brokers", description=__doc__)
    parser.add_argument("--n", type=int, default=50_000, help="entries of a stream")
    parser.add_argument("--reps", type=int, default=5, help="rounds, interleaved; medians are printed")
    given = parser.parse_args(arguments)
    n = given.n
    rows = [{"n": number, "carrier": number % 16} for number in range(n)]
    print(machine.describe())
    print(f"redis {metadata.version('redis')}, nats-py {metadata.version('nats-py')}; {n:,} rows; medians (low-high)")
    with redis_server() as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        job = mp.Job("fill")
        job.source("in", sources.Memory(rows)).sink("out", sinks.RedisStream(url, "in"))
        mp.run(job)
        show("sources.RedisStream", lambda n: redis_loop(url, n), lambda n: redis_job(url, n), n, n, given.reps)
        show("sinks.RedisStream", lambda r: redis_append(url, r), lambda r: redis_sink(url, r), rows, n, given.reps)
    with nats_server() as server:
        url = f"nats://127.0.0.1:{server.port}"
        fill_nats(url, rows)
        show("sources.JetStream", lambda n: nats_loop(url, n), lambda n: nats_job(url, n), n, n, given.reps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
