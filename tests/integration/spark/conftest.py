"""One Spark for all tests of a process, classic or Connect: MALSTROM_SPARK says which, for a process has one kind only.

A test that makes sense for one kind alone has the mark ``only_classic`` or ``only_connect``: it is none of the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.spark.local_spark import Kind, local_spark
from tests.tree import ROOT

KIND: Final[Kind] = "connect" if os.environ.get("MALSTROM_SPARK", "classic") == "connect" else "classic"
_OTHER: Final = {"classic": "only_connect", "connect": "only_classic"}[KIND]
_HERE: Final = str(Path(__file__).parent.relative_to(ROOT))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is of the other kind."""
    others = [item for item in items if item.nodeid.startswith(_HERE) and item.get_closest_marker(_OTHER)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def spark_kind() -> Kind:
    return KIND


@pytest.fixture(scope="session")
def spark(spark_kind: Kind) -> Iterator[Any]:
    """The session that all tests share: leave it as it was found. It is the active one, and the default one."""
    with local_spark(spark_kind) as session:
        yield session
