"""Wrong arguments of both ends of Redis fail when they are given, and name what is wrong."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError

URL = "redis://localhost:6379/0"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("localhost", "in"), {}, "URL"),
        ((f"{URL}?decode_responses=True", "in"), {}, "option decode_responses"),
        ((f"{URL}?db=1&protocol=3", "in"), {}, "option protocol"),
        ((URL, []), {}, "several different"),
        ((URL, ["in", "in"]), {}, "several different"),
        ((URL, "in"), {"start": "now"}, "start is"),
        ((URL, "in"), {"start": 7}, "start is"),
        ((URL, "in"), {"on_gap": "warn"}, "on_gap is"),
        ((URL, "in"), {"value": 1}, "value is"),
    ],
)
def test_a_wrong_source_is_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        sources.RedisStream(*arguments, **options)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("http://localhost", "out"), {}, "URL"),
        ((URL, ""), {}, "name of a stream"),
        ((URL, "a}b"), {}, "name of a stream"),
        ((URL, "out"), {"length_max": 0}, "length_max"),
        ((URL, "out"), {"length_max": True}, "length_max"),
        ((URL, "out"), {"fields": "x"}, "fields is"),
    ],
)
def test_a_wrong_sink_is_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        sinks.RedisStream(*arguments, **options)


@pytest.mark.parametrize("url", ["redis://app:hu/sh@host:6379/0", "rediss://:hu#sh@host", "redis://[app:hush@host"])
@pytest.mark.parametrize("make", [sources.RedisStream, sinks.RedisStream])
def test_a_password_with_characters_of_a_url_is_refused_without_it(make: Any, url: str) -> None:
    with pytest.raises(PlanError, match="password as %40") as raised:
        make(url, "in")
    assert "hu" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_missing_client_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlanError, match=r"pip install 'redis>="):
        sources.RedisStream(URL, "in")
    with pytest.raises(PlanError, match=r"pip install 'redis>="):
        sinks.RedisStream(URL, "out")
