"""Two nodes of Ray in two network namespaces, for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.netns.networks import Network, network
from tests.integration.netns.nodes import Apart, two_nodes_apart


@pytest.fixture
def line() -> Iterator[Network]:
    """Return two network namespaces and the relay between them."""
    with network() as made:
        yield made


@pytest.fixture
def apart(rays: Any, tmp_path: Path) -> Iterator[Apart]:
    """Return two nodes of Ray in two network namespaces. No other Ray runs beside them."""
    rays.close()
    logs = tmp_path / "logs"
    logs.mkdir()
    with two_nodes_apart(logs) as made:
        yield made
