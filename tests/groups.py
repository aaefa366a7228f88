"""Which tests run one after the other where several processes share them, as in ``make test``, and in which order.

Rule: all tests that start a Ray run in one process, and so do all that start a Spark: no two Rays run at the same time,
nor two Sparks, but for the files that need both. So do the tests of PostgreSQL, which share a server, and those of any
other file. What takes longest comes first: no process is left alone with it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

GROUPS: Final = {
    "ray": (
        "tests/integration/ray/",
        "tests/integration/netns/",
        "tests/integration/transport/",
        "tests/integration/spark/test_sink_on_ray.py",
        "tests/integration/spark/test_source_on_ray.py",
        "tests/integration/test_demo_ray.py",
        "tests/docs/test_code_blocks.py::test_the_python_of_a_page_runs[docs/ray.md]",
        "tests/docs/test_code_blocks.py::test_the_python_of_a_page_runs[docs/debugging.md]",
    ),
    "spark": (
        "tests/integration/spark/",
        "tests/integration/test_demo_spark.py",
    ),
    "lake": (
        "tests/integration/connectors/test_lake_",
        "tests/integration/connectors/test_object_stores_",
        "tests/docs/test_code_blocks.py::test_the_python_of_a_page_runs[docs/connectors/lake.md]",
    ),
    "postgres": ("tests/integration/connectors/test_postgres_",),
}
"""Group -> how the names of its tests begin."""

LONG: Final = {
    "docs/test_reference.py": ("test_it_is_written_as_html_with_a_search",),
    "integration/columns/test_rows_and_columns.py": (
        "test_event_time_of_a_column_is_that_of_its_rows[ns]",
        "test_event_time_of_a_column_is_that_of_its_rows[s]",
        "test_event_time_of_a_column_is_that_of_its_rows[us]",
    ),
    "integration/connectors/test_kafka_broker.py": ("test_what_make_test_kafka_runs_passes_on_the_model",),
    "integration/connectors/test_kafka_processes.py": ("test_",),
    "integration/connectors/test_kafka_sink.py": (
        "test_s7_a_committer_dies_between_two_calls[begin_transaction",
        "test_s7_a_committer_dies_between_two_calls[init_transactions",
    ),
    "integration/connectors/test_lake_objects.py": (
        "test_partitions_have_any_value_and_a_table_keeps_the_contract_of_sources[iceberg",
        "test_s7_committers_of_one_snapshot_race",
        "test_s7_a_crash_between_any_two_calls",
        "test_s7_a_table_keeps_the_contract_of_sinks",
    ),
    "integration/connectors/test_lake_sinks.py": ("test_s7_a_crash_between_any_two_calls",),
    "integration/connectors/test_postgres_failures.py": (
        "test_a_connection_that_is_cut_at_each_message_of_a_commit",
        "test_a_connection_that_is_cut_at_each_message_of_a_pre_commit",
        "test_a_connection_that_is_cut_at_each_message_of_a_pre_commit[before",
        "test_a_server_that_is_killed_and_stays_away_for_a_call",
        "test_a_server_that_is_killed_between_any_two_calls",
        "test_a_server_that_is_killed_between_any_two_calls[upsert",
    ),
    "integration/connectors/test_postgres_seeds.py": ("test_s7_more_seeds", "test_what_was_never_met"),
    "integration/connectors/test_postgres_sink.py": ("test_it_keeps_the_contract_of_sinks[upsert",),
    "integration/control/test_running_jobs.py": (
        "test_a_job_without_control_is_not_found",
        "test_a_process_that_is_killed_while_somebody_waits",
        "test_ctrl_c_of_the_run_is_told",
        "test_ctrl_c_stops_the_waiting",
        "test_the_end_of_the_program_ends_its_jobs_and_says_what_nobody_asked[failed",
        "test_the_end_of_the_program_ends_its_jobs_and_says_what_nobody_asked[interrupted",
        "test_the_end_of_the_program_ends_its_jobs_and_says_what_nobody_asked[stopped",
        "test_the_end_of_the_program_ends_its_jobs_and_says_what_nobody_asked[stuck",
    ),
    "integration/control/test_snapshots.py": (
        "test_a_finished_job_says_so_when_it_is_started_again[False",
        "test_s7_a_job_that_was_stopped_goes_on_where_it_was[SIGTERM twice",
        "test_s7_a_job_that_was_stopped_goes_on_where_it_was[SIGTERM]",
        "test_s7_a_job_that_was_stopped_goes_on_where_it_was[default interval",
        "test_s7_a_job_that_was_stopped_goes_on_where_it_was[stop --no-drain",
    ),
    "integration/monitoring/test_pictures.py": ("test_",),
    "integration/ray/test_autoscaling.py": (
        "test_a_job_follows_a_day_curve[120",
        "test_a_job_without_room",
        "test_r9_a_user_wins",
    ),
    "integration/netns/test_cuts.py": ("test_",),
    "integration/netns/test_ray_autoscaler.py": ("test_",),
    "integration/ray/test_brought.py": (
        "test_a_detached_job_is_started_watched",
        "test_a_resource_that_an_autoscaling_cluster_never_gets",
        "test_folders_and_modules_that_only_the_program_has",
        "test_the_command_refuses_a_detached_job",
        "test_the_command_refuses_resources_that_no_node_has",
    ),
    "integration/ray/test_deaths.py": (
        "test_a_joiner_that_is_killed_while_it_opens",
        "test_s6_a_worker_is_killed_in_the_middle_of_a_rescale[4",
    ),
    "integration/ray/test_event_time.py": ("test_p2_event_time_is_true",),
    "integration/ray/test_events.py": (
        "test_a_coordinator_that_is_replaced_begins_a_new_log",
        "test_kills_are_events",
    ),
    "integration/ray/test_going_on.py": ("test_",),
    "integration/ray/test_logs.py": (
        "test_a_stop_past_its_limit_ends_the_job",
        "test_actors_log_as_the_program_does",
    ),
    "integration/ray/test_metrics.py": ("test_who_watches_a_job_does_not_delay_the_news",),
    "integration/ray/test_new_parts.py": ("test_",),
    "integration/ray/test_nexmark.py": (
        "test_p1_a_query_finds_the_same_through_rescales[q6",
        "test_p1_every_other_query",
    ),
    "integration/ray/test_nodes.py": (
        "test_a_lost_node_ends_a_job_without_snapshots",
        "test_placement_spreads_or_packs",
        "test_s6_a_job_with_snapshots_continues_without_a_lost_node",
        "test_workers_start_on_a_new_node_and_leave_a_node",
    ),
    "integration/ray/test_nodes_cut_off.py": ("test_",),
    "integration/ray/test_programs.py": (
        "test_a_cluster_that_goes_away",
        "test_a_detached_job_outlives_its_program",
        "test_a_job_cannot_outlive_a_ray_that_ends",
        "test_a_job_ends_with_the_program_that_started_it[e",
        "test_a_job_that_does_not_stop_with_its_program",
        "test_classes_of_main_travel",
        "test_s5_a_job_whose_program_is_killed_with_its_ray",
    ),
    "integration/ray/test_ray_data.py": (
        "test_a_sink_joins_files_of_different_columns",
        "test_rows_that_were_not_staged",
        "test_s7_staged_rows_are_read_by_another_source_object",
    ),
    "integration/ray/test_recovery.py": (
        "test_s4_a_restarted_coordinator",
        "test_s5_a_job_resumes_from_a_savepoint",
        "test_s5_a_stopped_job_resumes_at_another_size",
        "test_s5_a_users_checkpointer",
        "test_s6_a_job_that_fails_each_time",
        "test_s6_a_survivor_that_does_not_stop_in_time",
        "test_s6_a_worker_that_fails_gets_a_new_process",
        "test_s6_state_and_files_are_exact_after_kills",
        "test_s6_workers_that_survive",
    ),
    "integration/ray/test_reload.py": ("test_all_processes_have_the_new_code",),
    "integration/ray/test_rescale.py": (
        "test_p1_a_job_goes_from_1_to_2_to_4_to_3_to_1[ray]",
        "test_p1_at_full_load",
    ),
    "integration/ray/test_sinks.py": (
        "test_files_are_whole_after_rescales",
        "test_functions_get_each_row_once",
        "test_s7_a_recording_has_each_row_once",
    ),
    "integration/ray/test_stopped_coordinators.py": (
        "test_a_coordinator_that_holds_the_interpreter_lock",
        "test_s7_a_stopped_coordinator",
    ),
    "integration/ray/test_stops.py": (
        "test_s7_a_detached_job_is_stopped",
        "test_s7_a_sigterm_before_the_job_has_been_started_stops_it_then",
        "test_s7_a_sigterm_stops_a_job_of_the_command_line",
        "test_s7_a_stop_by_sigterm_may_take_longer",
    ),
    "integration/ray/test_trouble.py": (
        "test_a_death_is_reported_while_a_leaver_takes_long",
        "test_a_rescale_whose_workers_do_not_start_in_time",
        "test_a_second_run_of_a_job_clears",
        "test_clients_that_wait",
        "test_impossible_sizes",
        "test_r9_requests_at_once",
        "test_stop_at_once[False]",
    ),
    "integration/recovery/test_going_on.py": (
        "test_resume_by_id_goes_on_from_a_savepoint_elsewhere",
        "test_s3_a_sink_that_is_not_transactional_sees_nothing_twice_by_a_stop[sizes1",
        "test_s5_a_job_that_was_stopped_goes_on_at_another_scale[1-3",
        "test_s5_a_job_that_was_stopped_goes_on_at_another_scale[4-2",
    ),
    "integration/recovery/test_new_files.py": ("test_each_night_reads_what_is_new_also",),
    "integration/sinks/test_files_memory.py": (
        "test_four_hundred_megabytes_go_into_files_in_less_memory[*-]",
        "test_four_hundred_megabytes_go_into_files_in_less_memory[csv-part",
        "test_four_hundred_megabytes_go_into_files_in_less_memory[json-part",
        "test_four_hundred_megabytes_go_into_files_in_less_memory[parquet-part",
    ),
    "integration/sinks/test_full_disk.py": (
        "test_a_full_disk_is_a_sink_error_and_leaves_nothing[json",
        "test_a_full_disk_is_a_sink_error_and_leaves_nothing[parquet",
    ),
    "integration/sinks/test_killed_commit.py": (
        "test_the_next_process_finishes_the_commit[1",
        "test_the_next_process_finishes_the_commit[2",
    ),
    "integration/sources/test_files_processes.py": (
        "test_parts_dealt_to_several_workers_are_the_whole_file[jsonl",
        "test_parts_dealt_to_several_workers_are_the_whole_file[parquet",
        "test_two_hundred_parts_open_at_once_take_little_memory",
    ),
    "integration/spark/test_connect.py": (
        "test_what_reads_and_writes_does_so_over_connect[all]",
        "test_what_reads_and_writes_does_so_over_connect[session",
    ),
    "integration/spark/test_sessions.py": ("test_sessions_of_the_user_are_kept_and_own_ones_closed",),
    "integration/spark/test_sink_on_ray.py": ("test_s6_with_snapshots_rows_show_once",),
    "integration/spark/test_sink_through_spark.py": (
        "*[csv append]",
        "*[json error]",
        "*[json overwrite]",
        "*[partitioned table append]",
    ),
    "integration/spark/test_source_on_ray.py": ("test_a_later_run_reads",),
    "integration/spark/test_source_since.py": (
        "test_a_later_run_reads_what_is_above_the_largest_value_of_the_one_before[CAST",
        "test_a_later_run_reads_what_is_above_the_largest_value_of_the_one_before[date",
    ),
    "integration/spark/test_trouble.py": (
        "test_a_spark_that_dies_while_a_source_is_pinned",
        "test_what_a_spark_that_dies_was_publishing",
    ),
    "integration/test_bench.py": (
        "test_chains_of_columns_compute_what_polars_does",
        "test_steps_of_many_keys_and_windows",
    ),
    "integration/test_dag_processes.py": ("test_what_one_process_has_checkpointed_another_restores",),
    "integration/test_demo_ray.py": ("test_the_demo_goes_from_two_workers_to_four_and_back",),
    "integration/test_demo_spark.py": ("test_a_job_on_ray_between_two_ends_of_spark",),
    "integration/test_interrupt.py": ("test_ctrl_c_ends_a_run_with_calls_under_way[blocks]",),
    "integration/test_memory_bound.py": (
        "*[one record becomes a thousand, sent to another region-1",
        "test_four_hundred_megabytes_pass_through_less_than_half_of_that[one record becomes a thousand-",
        "test_four_hundred_megabytes_pass_through_less_than_half_of_that[records of a mebibyte-1",
    ),
    "integration/test_nexmark.py": (
        "*[14 more",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q0]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q11]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q12]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q13]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q14]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q15]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q16]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q17]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q19]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q1]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q20]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q3]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q4]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q7]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q8]",
        "test_a_query_finds_the_same_through_rescales_and_losses[2 seeds-q9]",
    ),
    "integration/test_rebalance.py": (
        "test_a_key_that_is_too_heavy_for_one_worker_is_named_until_it_is_not",
        "test_a_terminal_and_the_page_ask_for_a_rebalance",
    ),
    "integration/test_packaging.py": (
        "*[folder",
        "*[sdist",
        "test_a_job_runs_beside_the_users_own_rooms[editable",
        "test_a_job_runs_beside_the_users_own_rooms[sdist",
        "test_every_module_is_found_once_installed[folder",
        "test_every_module_is_found_once_installed[sdist",
        "test_the_accelerator_is_built_where_there_is_a_compiler[editable",
        "test_the_accelerator_is_built_where_there_is_a_compiler[folder",
        "test_the_accelerator_is_built_where_there_is_a_compiler[sdist",
        "test_type_checkers_of_another_project_see_the_package[editable",
        "test_type_checkers_of_another_project_see_the_package[folder",
        "test_type_checkers_of_another_project_see_the_package[sdist",
        "test_type_checkers_of_another_project_see_the_package[wheel-mypy",
    ),
    "integration/test_packaging_imports.py": (
        "test_a_checkout_without_links_says_what_is_missing_and_what_to_do[nothing-neither",
        "test_a_checkout_without_links_says_what_is_missing_and_what_to_do[text-neither",
    ),
    "integration/test_packaging_rooms.py": ("test_coverage_measures_every_module",),
    "integration/test_partitioner_processes.py": ("test_f3_ours_give_the_same_slots_in_every_process[partitioner1",),
    "integration/test_simulation_processes.py": ("test_p10_the_same_seed_gives",),
    "integration/transport/test_contract.py": ("test_a_peer_comes_back_under_its_number[calls",),
    "laws/test_wrong_operators.py": (
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: at epochs",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: forgets batches",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: keys that come",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: keys that leave",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: lists that were sent",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: never lost",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: new values",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: on schedule",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: positions",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: record by record",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: timers that are due",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: timers that are set",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[delta invariance: whole batches",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[migration invariance: collects",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[migration invariance: counts its epochs",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[migration invariance: forgets timers",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[migration invariance: ignores Acquire",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[migration invariance: installs late",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[migration invariance: keeps a copy",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[migration invariance: reports all",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[migration invariance: resets",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[migration invariance: state in the logic",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[migration invariance: writes later",
        "test_a_wrong_step_is_named_by_the_law_it_breaks[snapshot invariance: forgets timers",
    ),
    "simulation/commits/test_commits.py": (
        "test_a_wrong_sink_is_seen_by_any_seeds",
        "test_s7_each_row_is_visible_once_wherever_the_job_dies_or_pauses[iceberg",
        "test_s7_more_seeds",
    ),
    "simulation/jobs/test_events.py": (
        "test_each_worker_has_one_last_event_under_every_schedule[100",
        "test_each_worker_has_one_last_event_under_every_schedule[40",
        "test_each_worker_has_one_last_event_under_every_schedule[60",
        "test_each_worker_has_one_last_event_under_every_schedule[80",
    ),
    "simulation/jobs/test_idle_parts.py": (
        "test_t2_time_passes_although_parts_are_silent_for_ever[1",
        "test_t2_time_passes_although_parts_are_silent_for_ever[2",
        "test_t2_time_stands_still_if[idle workers do not",
        "test_t2_time_stands_still_if[idle workers follow",
        "test_t2_time_stands_still_if[idleness is lost in held",
        "test_t2_time_stands_still_if[idleness is lost in markers",
        "test_t2_time_stands_still_if[idleness is that before",
        "test_t7_windows_close_although_all_parts_are_silent_for_ever[1",
        "test_t7_windows_close_although_all_parts_are_silent_for_ever[2",
    ),
    "simulation/jobs/test_matrix.py": (
        "test_p1_p2_jobs_of_every_shape_grow_and_shrink_under_traffic[split",
        "test_p1_p2_jobs_of_every_shape_grow_and_shrink_under_traffic[union",
    ),
    "simulation/jobs/test_oracle.py": (
        "test_each_damage_to_each_shape_is_seen[arrays",
        "test_each_damage_to_each_shape_is_seen[clocked",
        "test_each_damage_to_each_shape_is_seen[collect",
        "test_each_damage_to_each_shape_is_seen[columns",
        "test_each_damage_to_each_shape_is_seen[diamond",
        "test_each_damage_to_each_shape_is_seen[distinct",
        "test_each_damage_to_each_shape_is_seen[enriched",
        "test_each_damage_to_each_shape_is_seen[figures",
        "test_each_damage_to_each_shape_is_seen[letters",
        "test_each_damage_to_each_shape_is_seen[linear",
        "test_each_damage_to_each_shape_is_seen[mixed",
        "test_each_damage_to_each_shape_is_seen[panes",
        "test_each_damage_to_each_shape_is_seen[rejoin",
        "test_each_damage_to_each_shape_is_seen[three-stages",
        "test_each_damage_to_each_shape_is_seen[ttl",
        "test_each_damage_to_each_shape_is_seen[two-inputs",
        "test_each_damage_to_each_shape_is_seen[two-stages",
        "test_each_damage_to_each_shape_is_seen[union",
        "test_each_damage_to_each_shape_is_seen[windows-of-windows",
    ),
    "simulation/jobs/test_autoscaling.py": (
        "test_s6_a_job_that_crashes",
        "test_the_size_of_a_job_follows_its_load[1",
    ),
    "simulation/jobs/test_restoring.py": (
        "test_s5_a_snapshot_of_any_number_of_workers_goes_on_with_any_other[2]",
        "test_s5_a_snapshot_of_any_number_of_workers_goes_on_with_any_other[3]",
        "test_s5_a_snapshot_of_any_number_of_workers_goes_on_with_any_other[4]",
        "test_s5_a_snapshot_of_any_number_of_workers_goes_on_with_any_other[5]",
        "test_s5_a_snapshot_of_any_number_of_workers_goes_on_with_any_other[6]",
        "test_s5_a_snapshot_of_any_number_of_workers_goes_on_with_any_other[7]",
    ),
    "simulation/jobs/test_state_machine.py": (
        "test_what_hypothesis_does_to_a_job_ends_without_a_violation[Kept",
        "test_what_hypothesis_does_to_a_job_ends_without_a_violation[TwoStages",
        "test_what_hypothesis_does_to_a_job_ends_without_a_violation[Union",
    ),
    "simulation/jobs/test_wrong_columns.py": (
        "test_what_changed_in_arrays_is_in_a_delta_though_they_have_become_rows[139",
    ),
    "simulation/jobs/test_wrong_snapshots.py": (
        "test_what_is_done_wrong_is_seen[workers continue after the last barrier",
    ),
    "simulation/protocol_model/test_exhaustive.py": (
        "test_a_wrong_schedule_is_told",
        "test_every_interleaving_ends_as_it_should[chain 1 -> 2, two parts",
        "test_every_interleaving_ends_as_it_should[chain 1 -> 2, two records",
        "test_every_interleaving_ends_as_it_should[chain 2 -> 1, one record",
        "test_every_interleaving_ends_as_it_should[join 1 -> 2, ",
    ),
    "simulation/test_seeds.py": (
        "test_other_seeds_have_other_traces[commits",
        "test_the_same_seed_has_the_same_trace_in_every_process[jobs-101",
        "test_the_same_seed_has_the_same_trace_in_every_process[model-11",
    ),
    "unit/builder/test_initial_state.py": ("test_a_job_that_is_resumed_is_not_given",),
    "unit/capture/test_replay.py": (
        "test_a_wrong_recording_or_replay_is_seen[Capture-recover",
        "test_a_wrong_recording_or_replay_is_seen[Merge-_lowest",
        "test_a_wrong_recording_or_replay_is_seen[Merge-_reached",
        "test_k_streams_are_replayed_on_j_workers[3-True",
        "test_k_streams_are_replayed_on_j_workers[5-False",
    ),
    "unit/dag/test_dag_executor_random.py": (
        "test_a_checkpoint_restored_into_a_new_executor_at_every_point",
        "test_going_back_to_any_checkpoint",
    ),
    "unit/dag/test_graph.py": ("test_a_graph_of_ten_thousand_nodes",),
    "unit/operators/test_column_figures.py": ("test_moves_and_losses_change_no_figure",),
    "unit/operators/test_column_snapshots.py": ("test_s2_s5_the_chain_is_the_state_in_every_mix",),
    "unit/operators/test_join.py": ("test_p2_a_wrong_join_by_window_is_seen[JoinPanes-many",),
    "unit/operators/test_time_join.py": ("test_p2_a_wrong_join_is_seen[interval, outer",),
    "unit/operators/test_window.py": (
        "test_p2_a_wrong_window_is_seen[TimeWindows-close-changes_unnoted",
        "test_p2_windows_come_once_through_moves_losses_and_snapshots[sliding, odd",
        "test_p2_windows_come_once_through_moves_losses_and_snapshots[tumbling, origin",
    ),
    "unit/operators/test_window_snapshots.py": ("test_s2_s5_the_chain_is_the_state_and_what",),
    "unit/operators/test_windows_columns.py": (
        "test_f5_windows_gathered_before_the_exchange_come_once_through_moves_losses_and_snapshots[numpy",
        "test_p2_windows_over_columns_come_once_through_moves_losses_and_snapshots[C-tumbling, origin",
        "test_p2_windows_over_columns_come_once_through_moves_losses_and_snapshots[numpy-sliding, odd",
        "test_p2_windows_over_columns_come_once_through_moves_losses_and_snapshots[numpy-tumbling, origin",
    ),
    "unit/rescale/test_autoscaling.py": ("test_more_seeds_of_noise_make_at_most_one",),
    "unit/rescale/keys/test_key_hash.py": ("test_f4_keys_that_are_one_key_of_a_dict",),
    "unit/sinks/spark/test_folders.py": (
        "*[append]",
        "*[error]",
        "*[overwrite-partitioned]",
        "*[partitioned]",
    ),
    "unit/sinks/spark/test_publication_log.py": (
        "*[error]",
        "*[overwrite-partitioned]",
        "*[partitioned]",
        "*[s1-",
        "*[s2-append]",
        "*[s2-error]",
        "*[s2-partitioned]",
        "*[s3-",
    ),
    "unit/sinks/test_base_contract.py": (
        "test_files_keep_the_contract_partitioned_and_rolled[n-1-json",
        "test_files_keep_the_contract_partitioned_and_rolled[n-1048576",
        "test_files_keep_the_contract_partitioned_and_rolled[partition_by2-1-csv",
        "test_files_keep_the_contract_partitioned_and_rolled[partition_by2-1-json",
        "test_files_keep_the_contract_partitioned_and_rolled[partition_by2-1048576-csv",
        "test_files_keep_the_contract_partitioned_and_rolled[partition_by2-1048576-json",
    ),
    "unit/sources/test_files_splits.py": ("test_every_row_group_is_in_one_part",),
    "unit/testing/laws/test_oracle.py": (
        "test_the_input_on_which_an_oracle_raises_is_shrunk",
        "test_what_obeys_all_laws_and_is_wrong",
    ),
    "unit/workers/engine/test_following_schedules.py": (
        "test_t2_no_record_is_ever_below_a_frontier_and_none_is_lost[one_line",
        "test_t2_no_record_is_ever_below_a_frontier_and_none_is_lost[two_judges",
        "test_t2_no_record_is_ever_below_a_frontier_and_none_is_lost[union_before",
    ),
    "unit/workers/engine/test_worker_backpressure.py": (
        "test_f2_a_slow_worker_without_rows_is_not_buried_under_epochs[0",
        "test_f2_a_slow_worker_without_rows_is_not_buried_under_epochs[2",
        "test_f2_memory_is_flat_however_much_there_is_to_read[90% on one key-0",
        "test_f2_memory_is_flat_however_much_there_is_to_read[90% on one key-1",
        "test_f2_memory_is_flat_however_much_there_is_to_read[even-0",
        "test_f2_memory_is_flat_however_much_there_is_to_read[even-1",
    ),
    "unit/workers/runtime/test_local_workers_rescale_schedules.py": (
        "test_p2_no_record_is_ever_below_a_frontier_whoever_comes_and_goes[one_line",
    ),
}
"""The tests of `make long`: further cases of what a shorter test shows, and the long demos. File below ``tests`` ->
how the names of its tests begin; a * matches any text."""

_LONG: Final = re.compile(
    "|".join(
        re.escape(f"tests/{file}::{begin}").replace(r"\*", ".*") for file, begins in LONG.items() for begin in begins
    )
)

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
    return _LONG.match(nodeid) is not None


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

    def remove_node(self, node: Any) -> str | None:
        """Give others the tests that a dead process had still to run, and return the one it died in.

        That one has failed: it is not run again. Of the groups that were done, xdist would assign empty ones, and a
        process that gets one waits for ever.
        """
        groups = self.assigned_work.pop(node)
        died_in = next((test for group in groups.values() for test, done in group.items() if not done), None)
        for name, group in groups.items():
            if left := {test: False for test, done in group.items() if not done and test != died_in}:
                self.workqueue[name] = left
        for other in self.assigned_work:
            self._reschedule(other)
        return died_in

    def _reschedule(self, node: Any) -> None:
        """Assign groups to a process until it has two tests, or knows that none follows: before, it begins none.

        xdist assigns one group, and a process that gets a single test waits for ever.
        """
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
