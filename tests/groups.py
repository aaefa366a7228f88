"""Which tests run one after the other where several processes share them, as in ``make test``, and in which order.

Rule: all tests that start a Ray run in one process, and so do all that start a Spark: no two Rays run at the same time,
nor two Sparks, but for the files that need both. So do the tests of any other file. What takes longest comes first:
no process is left alone with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

GROUPS: Final = {
    "ray": (
        "tests/integration/ray/",
        "tests/integration/transport/",
        "tests/integration/spark/test_sink_on_ray.py",
        "tests/integration/spark/test_source_on_ray.py",
        "tests/integration/test_demo_ray.py",
        "tests/docs/test_code_blocks.py::test_the_python_of_a_page_runs[docs/ray.md]",
    ),
    "spark": (
        "tests/integration/spark/",
        "tests/integration/test_demo_spark.py",
    ),
}
"""Group -> how the names of its tests begin."""

LONG: Final = (
    *(
        f"tests/integration/ray/test_nodes_cut_off.py::{case}"
        for case in (
            "test_a_job_continues_without_a_node_cut_off",
            "test_workers_start_elsewhere",
            "test_a_raylet_that_stops_for_five_seconds_is_not_lost",
            "test_a_worker_whose_function_holds_the_interpreter_lock_is_not_lost",
        )
    ),
    "tests/integration/ray/test_programs.py::test_a_detached_job_outlives_its_program",
    "tests/integration/ray/test_programs.py::test_a_cluster_that_goes_away",
    "tests/integration/ray/test_programs.py::test_classes_of_main_travel",
    "tests/integration/ray/test_programs.py::test_a_job_ends_with_the_program_that_started_it[e",
    "tests/integration/ray/test_programs.py::test_s5_a_job_whose_program_is_killed_with_its_ray",
    "tests/integration/ray/test_programs.py::test_a_job_that_does_not_stop_with_its_program",
    "tests/integration/ray/test_programs.py::test_a_job_cannot_outlive_a_ray_that_ends",
    "tests/integration/ray/test_brought.py::test_the_command_refuses_a_detached_job",
    "tests/integration/ray/test_brought.py::test_a_resource_that_an_autoscaling_cluster_never_gets",
    "tests/integration/ray/test_going_on.py",
    "tests/integration/ray/test_rescale.py::test_p1_at_full_load",
    "tests/integration/ray/test_stops.py::test_s7_a_detached_job_is_stopped",
    "tests/integration/ray/test_nodes.py::test_placement_spreads_or_packs",
    "tests/integration/spark/test_sink_on_ray.py::test_s6_with_snapshots_rows_show_once",
    "tests/integration/spark/test_source_on_ray.py::test_a_later_run_reads",
    "tests/integration/ray/test_stops.py::test_s7_a_sigterm_before_the_job_has_been_started_stops_it_then",
    "tests/integration/ray/test_stops.py::test_s7_a_stop_by_sigterm_may_take_longer",
    "tests/integration/ray/test_deaths.py::test_s6_a_worker_is_killed_in_the_middle_of_a_rescale[4",
    "tests/integration/ray/test_rescale.py::test_p1_a_job_goes_from_1_to_2_to_4_to_3_to_1[ray]",
    "tests/integration/ray/test_recovery.py::test_s6_state_and_files_are_exact_after_kills[4]",
    "tests/integration/ray/test_recovery.py::test_s5_a_job_resumes_from_a_savepoint",
    "tests/integration/ray/test_recovery.py::test_s5_a_users_checkpointer",
    "tests/integration/ray/test_nodes.py::test_a_lost_node_ends_a_job_without_snapshots",
    "tests/integration/ray/test_trouble.py::test_a_rescale_whose_workers_do_not_start_in_time",
    "tests/integration/ray/test_recovery.py::test_s4_a_restarted_coordinator",
    "tests/integration/ray/test_trouble.py::test_a_death_is_reported_while_a_leaver_takes_long",
    "tests/integration/ray/test_trouble.py::test_stop_at_once[False]",
    "tests/integration/ray/test_sinks.py::test_functions_get_each_row_once",
    "tests/integration/test_demo_ray.py",
    "tests/integration/test_demo_spark.py",
    "tests/integration/spark/test_trouble.py::test_a_spark_that_dies_while_a_source_is_pinned",
    "tests/integration/spark/test_trouble.py::test_what_a_spark_that_dies_was_publishing",
    "tests/integration/spark/test_sessions.py::test_sessions_of_the_user_are_kept_and_own_ones_closed",
    "tests/integration/spark/test_connect.py::test_what_reads_and_writes_does_so_over_connect[all]",
    *(
        f"tests/integration/sinks/test_files_memory.py::test_four_hundred_megabytes_go_into_files_in_less_memory[{case}]"
        for case in ("csv-", "json-", "parquet-", "csv-part")
    ),
    *(
        f"tests/integration/control/test_snapshots.py::test_s7_a_job_that_was_stopped_goes_on_where_it_was[{case}]"
        for case in ("SIGTERM twice", "default interval", "stop --no-drain")
    ),
    "tests/integration/test_packaging.py::test_type_checkers_of_another_project_see_the_package[sdist",
    "tests/integration/test_packaging.py::test_type_checkers_of_another_project_see_the_package[folder",
    "tests/integration/test_packaging.py::test_type_checkers_of_another_project_see_the_package[editable",
    "tests/integration/test_enrich.py::test_ctrl_c_ends_a_run_with_calls_under_way[blocks]",
    *(
        f"tests/simulation/protocol_model/test_exhaustive.py::test_every_interleaving_ends_as_it_should[{case}"
        for case in ("join 1 -> 2, ", "chain 1 -> 2, two parts")
    ),
    *(
        f"tests/unit/sinks/spark/{case}[{mode}]"
        for case in (
            "test_folders.py::test_wherever_the_machine_dies_in_a_commit_the_next_start_finishes_it_or_nothing_is_visible",
            "test_folders.py::test_wherever_the_machine_dies_in_a_recovery_another_one_finishes_it",
            "test_folders.py::test_whatever_step_of_a_commit_fails_nothing_is_visible_or_the_next_start_finishes_it",
            "test_publication_log.py::test_wherever_the_machine_dies_in_a_recovery_the_next_start_goes_on",
            "test_publication_log.py::test_whatever_step_of_the_last_commit_fails_it_is_done_again_by_the_next_start",
        )
        for mode in ("partitioned", "overwrite-partitioned", "error")
    ),
    *(
        "tests/unit/sinks/spark/test_publication_log.py::"
        f"test_wherever_the_machine_dies_in_a_commit_the_next_start_finishes_it[{case}]"
        for case in (
            *("s1-partitioned", "s1-overwrite", "s1-error", "s2-append", "s2-partitioned", "s2-error"),
            *("s3-append", "s3-partitioned", "s3-overwrite"),
        )
    ),
    *(
        f"tests/unit/workers/engine/test_worker_backpressure.py::{case}]"
        for case in (
            "test_f2_memory_is_flat_however_much_there_is_to_read[even-0",
            "test_f2_memory_is_flat_however_much_there_is_to_read[even-1",
            "test_f2_memory_is_flat_however_much_there_is_to_read[90% on one key-0",
            "test_f2_memory_is_flat_however_much_there_is_to_read[90% on one key-1",
            "test_f2_a_slow_worker_without_rows_is_not_buried_under_epochs[0",
            "test_f2_a_slow_worker_without_rows_is_not_buried_under_epochs[2",
        )
    ),
)
"""How the names of the tests of `make long` begin: further cases of what a shorter test shows, and the long demos."""

FIRST: Final = (
    "ray",
    "spark",
    "tests/integration/",
    "tests/simulation/jobs/",
    "tests/simulation/protocol_model/",
    "tests/simulation/",
    "tests/laws/",
)
"""How the names of groups begin, those that take longest first. All others come after them."""


PATIENCE_S: Final = 600
"""A test that hangs is stopped after so long, five times what it is given alone: it may have half of a slow machine."""


def group_of(nodeid: str) -> str:
    """The group of a test: one of `GROUPS`, or its file."""
    file = nodeid.partition("::")[0]
    return next((group for group, begins in GROUPS.items() if nodeid.startswith(begins)), file)


def is_long(nodeid: str) -> bool:
    """Return whether a test belongs to `make long` only."""
    return nodeid.startswith(LONG)


def place_of(nodeid: str) -> int:
    """Return the position of a test's group in the order."""
    group = group_of(nodeid)
    return next((place for place, begins in enumerate(FIRST) if group.startswith(begins)), len(FIRST))


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # it is not annotated for others
    """Gives a process that is nearly done with what it has the next group, in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False  # the number of tests says little
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
