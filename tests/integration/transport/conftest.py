"""Both implementations of `Transport`, each with ends that are closed when their test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.transport.ends import CallsKind, Kind, ZeroMQKind


@pytest.fixture(params=["zeromq", "calls"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    made: ZeroMQKind | CallsKind
    if request.param == "zeromq":
        made = ZeroMQKind()
    else:
        request.getfixturevalue("ray_here")
        made = CallsKind()
    yield made
    made.close()


@pytest.fixture
def zeromq() -> Iterator[ZeroMQKind]:
    made = ZeroMQKind()
    yield made
    made.close()
