"""The contract of stores: put, create once, get, list and delete, for many threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest

from malstrom_py.errors import PlanError, SnapshotError
from malstrom_py.snapshot.store import MemoryStore, Store
from malstrom_py.validation import check_name
from tests.unit.snapshot.stores import STORES


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    make: Callable[[Path], Store] = STORES[request.param]
    return make(tmp_path / "store")


@pytest.mark.parametrize("data", [b"", b"one", bytes(range(256)) * 40_000])
def test_what_was_put_is_got(store: Store, data: bytes) -> None:
    store.put("orders/artefacts/a/b.full", data)
    assert store.get("orders/artefacts/a/b.full") == data
    assert type(store.get("orders/artefacts/a/b.full")) is bytes


def test_put_replaces(store: Store) -> None:
    store.put("orders/_latest", b"a long text")
    store.put("orders/_latest", b"short")
    assert store.get("orders/_latest") == b"short"
    assert store.list("") == ["orders/_latest"]


def test_s3_what_is_there_is_not_created(store: Store) -> None:
    assert store.create("orders/log/1.json", b"first")
    assert not store.create("orders/log/1.json", b"second")
    assert not store.create("orders/log/1.json", b"first")
    assert store.get("orders/log/1.json") == b"first"
    assert store.list("orders") == ["orders/log/1.json"]


def test_s3_of_many_who_create_one_succeeds(store: Store) -> None:
    store.create("log/0.json", b"made before")
    for number in range(1, 6):
        won: list[bytes] = []
        barrier = threading.Barrier(8, timeout=30)

        def create(mine: bytes, path: str = f"log/{number}.json") -> None:
            barrier.wait()  # noqa: B023  # they are joined below
            if store.create(path, mine):
                won.append(mine)  # noqa: B023

        threads = [threading.Thread(target=create, args=(b"%d" % n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [store.get(f"log/{number}.json")] == won


def test_who_reads_sees_the_old_or_the_new(store: Store) -> None:
    contents = [bytes([n]) * 200_000 for n in range(8)]
    store.put("orders/_latest", contents[0])
    seen: list[bytes] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(store.get("orders/_latest"))

    reader = threading.Thread(target=read)
    reader.start()
    for content in contents * 3:
        store.put("orders/_latest", content)
    done.set()
    reader.join()
    assert set(seen) <= set(contents)


def test_what_is_not_there_is_not_found(store: Store) -> None:
    store.put("orders/log/1.json", b"one")
    for path in ("nothing", "orders/log/2.json", "orders/nothing/1.json"):
        with pytest.raises(FileNotFoundError):
            store.get(path)


def test_paths_are_listed_below_a_folder_sorted(store: Store) -> None:
    paths = ["orders/log/10.json", "orders/log/9.json", "orders/_latest", "orders/logs/1.json", "other/log/1.json"]
    for path in paths:
        store.put(path, path.encode())
    assert store.list("orders/log") == ["orders/log/10.json", "orders/log/9.json"]
    assert store.list("orders") == sorted(path for path in paths if path.startswith("orders/"))
    assert store.list("") == sorted(paths)
    assert store.list("nothing") == store.list("orders/nothing/below") == []


def test_what_was_deleted_is_gone_and_may_be_so_already(store: Store) -> None:
    store.put("orders/artefacts/a/b.full", b"one")
    store.put("orders/artefacts/a/c.full", b"two")
    for _ in range(2):
        store.delete("orders/artefacts/a/b.full")
    assert store.list("") == ["orders/artefacts/a/c.full"]
    store.delete("orders/artefacts/a/c.full")
    store.delete("orders/artefacts/nothing/c.full")
    assert store.list("") == store.list("orders/artefacts/a") == []
    store.put("orders/artefacts/a/b.full", b"three")
    assert store.get("orders/artefacts/a/b.full") == b"three"


def test_a_segment_may_be_any_name_of_a_job_or_step(store: Store) -> None:
    for name in ("-x", "--", "_", "9", "a" * 64):
        store.put(f"{check_name(name, 'job')}/log", b"1")
        assert store.list(name) == [f"{name}/log"]
        store.delete(f"{name}/log")


@pytest.mark.parametrize(
    "path", ["..", "../x", "a/../b", "/etc/passwd", "a//b", "a/", ".hidden", "a/.hidden", "a b", "a\0", "ä", "a\n", "."]
)
def test_no_path_leads_out(store: Store, path: str) -> None:
    for tried in (
        lambda: store.put(path, b"x"),
        lambda: store.create(path, b"x"),
        lambda: store.get(path),
        lambda: store.list(path),
        lambda: store.delete(path),
    ):
        with pytest.raises(SnapshotError, match="is not a path in a store"):
            tried()


def test_a_store_in_memory_stays_in_its_process() -> None:
    with pytest.raises(PlanError, match="keep snapshots in a folder or in an object store"):
        cloudpickle.dumps(MemoryStore())


@pytest.mark.parametrize("kind", ["local", "objects in files"])
def test_a_store_reaches_other_processes_and_finds_there_what_was_put(kind: str, tmp_path: Path) -> None:
    store = STORES[kind](tmp_path / "store")
    store.put("orders/_latest", b"one")
    other: Store = cloudpickle.loads(cloudpickle.dumps(store))
    assert other.get("orders/_latest") == b"one"
    other.put("orders/_latest", b"two")
    assert store.get("orders/_latest") == b"two"
