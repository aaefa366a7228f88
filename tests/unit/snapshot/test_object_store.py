"""An error of an object store that cannot be reached or opened does not contain its options, which may be secret."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from malstrom_py.errors import PlanError, SnapshotError
from malstrom_py.snapshot.object_store import ObjectStore


def test_a_store_that_fails_names_the_path_and_what_it_said(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path.as_uri())
    store.put("orders/log/1.json", b"one")
    with pytest.raises(SnapshotError, match=r"orders/log cannot be written: .*Is a directory.*credentials") as raised:
        store.put("orders/log", b"a file where a folder is")
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize("url", ["nothing://bucket", "no url"])
def test_what_is_no_store_is_told_when_it_is_used(url: str) -> None:
    with pytest.raises(PlanError, match=f"snapshots at {url}: the store cannot be opened"):
        ObjectStore(url).put("orders/_latest", b"")


def test_options_that_there_are_not_are_told() -> None:
    with pytest.raises(PlanError, match="s3://bucket: the store cannot be opened") as raised:
        ObjectStore("s3://bucket", options={"colour": "hush"}).get("orders/_latest")
    assert "hush" not in str(raised.value)


def test_without_obstore_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(PlanError, match=r"pip install 'obstore>=0\.6'"):
        ObjectStore("s3://bucket").get("orders/_latest")
