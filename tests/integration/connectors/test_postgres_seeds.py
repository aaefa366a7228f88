"""Jobs write through `sinks.Postgres` and die, fail or pause at any statement of a transaction, by seed.

`make soak` runs any number of them.
"""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest

from malstrom_py import sinks
from malstrom_py.connectors.postgres import staging
from malstrom_py.errors import SinkError
from malstrom_py.testing.contracts.sinks import context_of
from tests.integration.connectors.postgres_tools import dsn_of, new_schema, run
from tests.servers import Server
from tests.simulation.commits.clients import watched_postgres
from tests.simulation.commits.lives import Fault, Life, doing
from tests.simulation.commits.on_postgres import run_on
from tests.simulation.commits.runs import Violation
from tests.simulation.soak import main

pytestmark = pytest.mark.needs_postgres


def test_s7_each_row_is_there_once_wherever_the_job_dies_or_pauses(postgres: Server) -> None:
    for seed in (1, 2, 8):  # seeds in which no life waits for the lock of a zombie
        run_on(dsn_of(postgres), seed)


def test_a_sink_that_discards_what_is_to_be_committed_is_seen(postgres: Server) -> None:
    wrong = mock.patch.object(staging, "is_left_over", return_value=True)
    with wrong, pytest.raises(Violation, match="were removed"):
        run_on(dsn_of(postgres), 0)


def test_a_process_that_stops_while_it_makes_the_table_of_commits_keeps_no_other_out(postgres: Server) -> None:
    with new_schema(postgres) as dsn, watched_postgres():
        run(dsn, "CREATE TABLE rows (n int)")
        target = sinks.Postgres(dsn, "rows")

        def recover() -> None:
            with doing("recover"):
                target.recover(context_of(1), [])

        zombie = Life("0", recover, [Fault("pause", "a step of recover", "after", 0)], Counter())
        zombie.resume()
        assert zombie.is_zombie
        target.recover(context_of(2, incarnation=2), [])
        zombie.resume()
    assert isinstance(zombie.error, SinkError)


@pytest.mark.long
def test_s7_more_seeds_of_each_row_once(postgres: Server) -> None:
    for seed in range(100, 250):
        run_on(dsn_of(postgres), seed)


@pytest.mark.long
def test_what_was_never_met_fails_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["postgres", "--first", "0", "--seeds", "2", "--processes", "1"]) == 1
    assert "\nnever met: " in capsys.readouterr().out
