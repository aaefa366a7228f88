"""S8: who can write the store damages a job, and never runs code: a pickle in any place of it is not read as one."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import MalstromError
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.manifest import open_seal, seal
from malstrom_py.snapshot.store import MemoryStore


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


def job(values: list[int]) -> tuple[mp.Job, sinks.Memory]:
    made, out = mp.Job("trapped"), sinks.Memory()
    read = made.source("in", sources.Memory(values, parts=2))
    read.key_by("parity", lambda n: n % 2).sum("total").sink("out", out)
    return made, out


def runtime(contents: dict[str, bytes]) -> mp.InProcess:
    store = MemoryStore()
    store._contents = contents
    kept = mp.Snapshots(checkpointer=StoreCheckpointer(store, "trapped"), interval_s=3600)
    return mp.InProcess(1, snapshots=kept, restart=mp.Restart(max_restarts=0))


def places(value: Any, replaced: Any) -> Iterator[Any]:
    """Yield copies of ``value`` of JSON, in each of which one leaf, or one whole branch, is ``replaced``."""
    yield replaced
    if isinstance(value, dict):
        for key, below in value.items():
            for each in places(below, replaced):
                yield {**value, key: each}
    elif isinstance(value, list):
        for index, below in enumerate(value):
            for each in places(below, replaced):
                yield [*value[:index], each, *value[index + 1 :]]


def hostile_contents(data: bytes, trap: bytes) -> Iterator[bytes]:
    yield trap
    try:
        fields = open_seal(data)
    except ValueError:
        return
    text, *payloads = (base64.b64encode(before + trap).decode() for before in (b"", b"rows:", b"stored:"))
    for replaced in (text, {"$": text}, payloads):
        yield from (seal(each) for each in places(fields, replaced) if isinstance(each, dict))


def test_s8_a_pickle_in_any_place_of_a_store_never_runs(tmp_path: Path) -> None:
    contents, resumed = dict[str, bytes](), 0
    runtime(contents).start(job(list(range(20_000)))[0], control=False).stop(drain=False)
    for path in [path for path in contents if "/commits/" in path]:
        del contents[path]  # so that what the sinks have pre-committed is committed again
    assert len(contents) >= 3
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    for path, right in contents.items():
        for data in hostile_contents(right, trap):
            with suppress(MalstromError):
                runtime({**contents, path: data}).run(job([1, 2, 3])[0])
                resumed += 1
            assert not sprung.exists(), f"{path}: {data[:400]!r}"
    assert resumed  # of some damage nothing is seen: the job has been resumed with it
    pickle.loads(trap)
    assert sprung.exists()
