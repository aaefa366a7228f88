"""The guard of tests/unit/conftest.py fires, and permits what stays in the process."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest


def test_sleep_raises() -> None:
    with pytest.raises(AssertionError, match=r"time\.sleep is forbidden in tests/unit"):
        time.sleep(0)


def test_opening_a_socket_raises() -> None:
    with pytest.raises(AssertionError, match=r"socket\.socket is forbidden"):
        socket.socket()
    with pytest.raises(AssertionError, match=r"socket\.socket is forbidden"):
        socket.create_connection(("localhost", 9))


@pytest.mark.parametrize("call", ["connect", "bind"])
def test_connecting_and_binding_an_inherited_socket_raise(call: str) -> None:
    left, right = socket.socketpair()
    with left, right, pytest.raises(AssertionError, match=rf"socket\.{call} is forbidden"):
        getattr(left, call)(("localhost", 9))


def _write_ray(folder: Path) -> None:
    (folder / "ray").mkdir()
    (folder / "ray" / "__init__.py").write_text("def init(): return 'started'\ndef is_initialized(): return False\n")


def test_ray_may_be_imported_but_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_ray(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    import ray  # type: ignore[import-not-found,unused-ignore]  # pyright: ignore[reportMissingImports]

    assert ray.__file__ == str(tmp_path / "ray" / "__init__.py")
    assert ray.is_initialized() is False
    with pytest.raises(AssertionError, match=r"ray\.init is forbidden"):
        ray.init()
    del sys.modules["ray"]
