"""Wrong arguments of `sources.JetStream` fail when they are given, and name what is wrong."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from malstrom_py import sources
from malstrom_py.errors import PlanError

URL = "nats://localhost:4222"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("localhost", "in"), {}, "servers is"),
        (([], "in"), {}, "servers is"),
        ((URL, "in.>"), {}, "name of a stream"),
        ((URL, "in"), {"subject": []}, "subject is"),
        ((URL, "in"), {"subject": ["a", "a"]}, "subject is"),
        ((URL, "in"), {"start": 0}, "start is"),
        ((URL, "in"), {"start": "last"}, "start is"),
        ((URL, "in"), {"on_gap": None}, "on_gap is"),
        ((URL, "in"), {"value": 1}, "value is"),
    ],
)
def test_a_wrong_source_is_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        sources.JetStream(*arguments, **options)


@pytest.mark.parametrize("url", ["nats://app:hu/sh@host:4222", "nats://app:hu?sh@host", "nats://[app:hush@host"])
def test_a_password_with_characters_of_a_url_is_refused_without_it(url: str) -> None:
    with pytest.raises(PlanError, match="password as %40") as raised:
        sources.JetStream(["nats://localhost:4222", url], "in")
    assert "hu" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_missing_client_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlanError, match=r"pip install 'nats-py>="):
        sources.JetStream(URL, "in")
