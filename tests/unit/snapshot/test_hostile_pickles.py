"""S8: who can write the store damages a job, and never runs code: a pickle in any place of it is not read as one."""

from __future__ import annotations

import base64
import pickle
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import MalstromError
from malstrom_py.snapshot.manifest import open_seal, seal


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


def runtime(folder: Path) -> mp.InProcess:
    return mp.InProcess(1, snapshots=mp.Snapshots(folder, interval_s=3600), restart=mp.Restart(max_restarts=0))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a snapshot of a job that continues."""
    handle = runtime(tmp_path / "kept").start(job(list(range(100)))[0], control=False)
    handle.stop(drain=False)
    return tmp_path / "kept"


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


def hostile_files(file: Path, trap: bytes) -> Iterator[bytes]:
    yield trap
    try:
        fields = open_seal(file.read_bytes())
    except ValueError:
        return
    text, *payloads = (base64.b64encode(before + trap).decode() for before in (b"", b"rows:", b"stored:"))
    for replaced in (text, {"$": text}, payloads):
        yield from (seal(each) for each in places(fields, replaced) if isinstance(each, dict))


def test_s8_a_pickle_in_any_place_of_a_store_never_runs(store: Path, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    files = [file for file in store.rglob("*") if file.is_file()]
    assert len(files) >= 3
    copy, resumed = tmp_path / "copy", 0
    for file in files:
        for data in hostile_files(file, trap):
            shutil.copytree(store, copy)
            (copy / file.relative_to(store)).write_bytes(data)
            with suppress(MalstromError):
                runtime(copy).run(job([1, 2, 3])[0])
                resumed += 1
            assert not sprung.exists(), f"{file.name}: {data[:400]!r}"
            shutil.rmtree(copy)
    assert resumed  # of some damage nothing is seen: the job has been resumed with it
    pickle.loads(trap)
    assert sprung.exists()
