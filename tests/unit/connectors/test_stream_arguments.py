"""Wrong arguments of both ends of Redis and of `sources.JetStream` fail when they are given, and name what is wrong."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError

REDIS, NATS = "redis://localhost:6379/0", "nats://localhost:4222"
WRONG: list[tuple[Any, Any, Any, dict[str, Any], str]] = [
    (sources.RedisStream, "localhost", "in", {}, "URL"),
    (sources.RedisStream, f"{REDIS}?decode_responses=True", "in", {}, "option decode_responses"),
    (sources.RedisStream, f"{REDIS}?db=1&protocol=3", "in", {}, "option protocol"),
    (sources.RedisStream, REDIS, [], {}, "each of them once"),
    (sources.RedisStream, REDIS, ["in", "in"], {}, "each of them once"),
    (sources.RedisStream, REDIS, "in", {"start": "now"}, "start is"),
    (sources.RedisStream, REDIS, "in", {"start": 7}, "start is"),
    (sources.RedisStream, REDIS, "in", {"on_gap": "warn"}, "on_gap must be"),
    (sources.RedisStream, REDIS, "in", {"value": 1}, "value must be"),
    (sinks.RedisStream, "http://localhost", "out", {}, "URL"),
    (sinks.RedisStream, REDIS, "", {}, "name of a stream"),
    (sinks.RedisStream, REDIS, "a}b", {}, "name of a stream"),
    (sinks.RedisStream, REDIS, "out", {"length_max": 0}, "length_max"),
    (sinks.RedisStream, REDIS, "out", {"length_max": True}, "length_max"),
    (sinks.RedisStream, REDIS, "out", {"fields": "x"}, "fields must be"),
    (sources.JetStream, "localhost", "in", {}, "servers is"),
    (sources.JetStream, [], "in", {}, "servers is"),
    (sources.JetStream, NATS, "in.>", {}, "name of a stream"),
    (sources.JetStream, NATS, "in", {"subject": []}, "subject must be"),
    (sources.JetStream, NATS, "in", {"subject": ["a", "a"]}, "subject must be"),
    (sources.JetStream, NATS, "in", {"start": 0}, "start is"),
    (sources.JetStream, NATS, "in", {"start": "last"}, "start is"),
    (sources.JetStream, NATS, "in", {"on_gap": None}, "on_gap must be"),
    (sources.JetStream, NATS, "in", {"value": 1}, "value must be"),
]


@pytest.mark.parametrize(("end", "address", "name", "options", "message"), WRONG)
def test_a_wrong_argument_is_refused(end: Any, address: Any, name: Any, options: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        end(address, name, **options)


@pytest.mark.parametrize("rest", ["app:hu/sh@host:42", "app:hu#sh@host", "app:hu?sh@host", "[app:hush@host"])
@pytest.mark.parametrize(
    ("end", "scheme"), [(sources.RedisStream, "redis"), (sinks.RedisStream, "rediss"), (sources.JetStream, "nats")]
)
def test_a_password_with_characters_of_a_url_is_refused_without_it(end: Any, scheme: str, rest: str) -> None:
    address = f"{scheme}://{rest}"
    with pytest.raises(PlanError, match="password as %40") as raised:
        end([NATS, address] if scheme == "nats" else address, "in")
    assert "hu" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("end", "address", "module", "package"),
    [
        (sources.RedisStream, REDIS, "redis", "redis"),
        (sinks.RedisStream, REDIS, "redis", "redis"),
        (sources.JetStream, NATS, "nats", "nats-py"),
    ],
)
def test_a_missing_client_is_advised(
    end: Any, address: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PlanError, match=rf"pip install '{package}>="):
        end(address, "in")
