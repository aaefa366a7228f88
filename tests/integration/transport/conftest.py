"""Both implementations of `Transport`, each with ends that are closed when their test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.transport.ends import CallsKind, Kind, ZeroMQKind, local_ray


@pytest.fixture(scope="package")
def ray_session() -> Iterator[None]:
    with local_ray():
        yield


@pytest.fixture(params=["zeromq", "calls"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    made: ZeroMQKind | CallsKind
    if request.param == "zeromq":
        made = ZeroMQKind()
    else:
        request.getfixturevalue("ray_session")
        made = CallsKind()
    yield made
    made.close()


@pytest.fixture
def zeromq() -> Iterator[ZeroMQKind]:
    made = ZeroMQKind()
    yield made
    made.close()
