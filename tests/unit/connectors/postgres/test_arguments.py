"""Wrong arguments are found before anything is connected, and no error repeats a part of a password."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from malstrom_py import sinks, sources
from malstrom_py.connectors.postgres import sink as sink_module
from malstrom_py.connectors.postgres.encoding import TargetColumn, encode
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.testing.contracts.sinks import context_of

DSN = "postgresql://app:hush@db.example.com/shop"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sinks.Postgres(DSN, "t", mode="replace"), "mode must be"),  # type: ignore[arg-type]
        (lambda: sinks.Postgres(DSN, "t", mode="upsert"), "needs keys"),
        (lambda: sinks.Postgres(DSN, "t", keys=["id"]), "keys are for"),
        (lambda: sinks.Postgres(DSN, "t", mode="upsert", keys=["id", "id"]), "each of them once"),
        (lambda: sinks.Postgres(DSN, " "), "name of a table"),
        (lambda: sources.Postgres(DSN, ""), "name of a table, or a query"),
        (lambda: sources.Postgres(DSN, "t", parts=0), "parts must be"),
        (lambda: sources.Postgres(DSN, "t", columns="id"), "several names"),
        (lambda: sources.Postgres(DSN, "t", columns=[]), "at least one"),
        (lambda: sources.PostgresChanges(DSN, "", "slot"), "publication must be"),
        (lambda: sources.PostgresChanges(DSN, "pub", "Slot"), "lower case"),
        (lambda: sources.PostgresChanges(DSN, "pub", "slot", warn_bytes=0), "warn_bytes"),
    ],
)
def test_wrong_arguments_are_named(make: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        make()


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app:hu@sh@db.example.com/shop",
        "postgresql://app:hu/sh@db.example.com/shop",
        "postgresql://app:12/sh@db.example.com/shop",
        "host=db password=hush sh",
        "hush",
        "postgresql://app:hush@db.example.com:54a/shop",
        b"hush",
        None,
    ],
)
def test_a_wrong_dsn_is_an_error_without_its_text(dsn: Any) -> None:
    for make in (
        lambda: sinks.Postgres(dsn, "t"),
        lambda: sources.Postgres(dsn, "t"),
        lambda: sources.PostgresChanges(dsn, "pub", "slot"),
    ):
        with pytest.raises(PlanError, match="dsn") as raised:
            make()
        assert "hu" not in str(raised.value)
        assert "sh" not in str(raised.value).replace("shop", "")


def test_no_text_of_them_has_the_password() -> None:
    for made in (sinks.Postgres(DSN, "t"), sources.Postgres(DSN, "t"), sources.PostgresChanges(DSN, "pub", "slot")):
        assert "hush" not in repr(made)
        assert repr(pickle.loads(pickle.dumps(made))) == repr(made)


def test_a_payload_that_is_damaged_or_of_another_step_is_refused() -> None:
    sink = sinks.Postgres(DSN, "t")
    for payload in (b"", b"[]", b'{"tables": 5}', b"{}"):
        with pytest.raises(SinkError, match="is damaged"):
            sink.commit(context_of(1), [payload])
    with pytest.raises(SinkError, match="another job or step"):
        sink.abort(context_of(1), [b'{"tables": ["customers"]}'])


def test_rows_beyond_a_slice_are_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{encode.__module__}._SLICE_ROWS", 2)
    monkeypatch.setattr(f"{encode.__module__}._JOINED_BYTES_MAX", 40)
    column = TargetColumn("v", "text")
    assert encode({column: list("abcde")}, 5) == b"a\nb\nc\nd\ne\n"
    with pytest.raises(SinkError, match="more than 1 GB"):
        encode({column: ["x" * 100]}, 1)
    assert sink_module.Postgres.takes_columns
