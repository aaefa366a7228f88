"""Commands on snapshots: list, show, verify and prune; and the options of ``malstrom run`` for snapshots.

Rule: the commands read a store and contact no running job; they never print state.
Exit codes: 0 done, 1 a snapshot is damaged or cannot be read, 2 the command was wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from malstrom_py.cli.commands import examples
from malstrom_py.cli.options import JsonOption
from malstrom_py.cli.output import (
    FAILED,
    WrongCommand,
    format_age,
    print_json,
    print_out,
    reporting_errors,
    table,
)
from malstrom_py.clock import SystemClock
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.errors import PlanError, SnapshotError, shown
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot import summary
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.ids import is_snapshot_id
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.log import LATEST, NONE, joined_faults
from malstrom_py.snapshot.manifest import Manifest
from malstrom_py.snapshot.selection import missing_in, newest_noted
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.store import Store, place_of
from malstrom_py.snapshot.verification import verify as faults_in
from malstrom_py.workers.reports.figures import format_size
from malstrom_py.workers.runtime.run_options import RunKeywords

GRACE_S = 3600.0
"""The minimum age of removed files that belong to no snapshot: a running job may be about to list younger ones."""


def _above_zero(seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds < math.inf:
        raise typer.BadParameter(f"it must be a number of seconds above 0, got {seconds:g}")
    return seconds


app = typer.Typer(
    help="List, show, verify and prune snapshots.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=examples("malstrom snapshots list snapshots", "malstrom snapshots verify s3://bucket/snapshots shop"),
)

UriArgument = Annotated[
    str, typer.Argument(metavar="URI", help="The store, as in mp.Snapshots(uri): a folder, s3://…, gs://…, az://…")
]
JobArgument = Annotated[
    str | None, typer.Argument(metavar="JOB", help="The name of the job; required if the store has several.")
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option of the object store, such as region=…."),
]

SnapshotsOption = Annotated[
    str | None,
    typer.Option("--snapshots", metavar="URI", help="Where to store snapshots: a folder, s3://…, gs://…, az://…"),
]
IntervalOption = Annotated[
    float | None,
    typer.Option(
        "--interval",
        callback=_above_zero,
        metavar="SECONDS",
        help="Seconds between snapshots, above 0; default 60.",
        show_default=False,
    ),
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="latest|none|ID",
        help="The snapshot to resume from: the newest, if there is one; none; or the one with this id.",
        show_default="latest",
    ),
]
AllowDroppedStateOption = Annotated[
    bool, typer.Option("--allow-dropped-state", help="Allow the state of removed steps to be dropped.")
]


@app.command(
    "list",
    epilog=examples(
        "malstrom snapshots list snapshots",
        "malstrom snapshots list s3://bucket/snapshots shop --option region=eu-central-1 --json",
    ),
)
def list_snapshots(
    uri: UriArgument, job: JobArgument = None, option: OptionOption = None, as_json: JsonOption = False
) -> None:
    """List the snapshots of one job, or of all jobs in a store."""
    with reporting_errors(traceback=False):
        store = store_of(uri, option)
        if isinstance(store, LocalStore) and not store.is_there:
            raise SnapshotError(f"folder {uri} does not exist: check where the snapshots are stored")
        found = list(_checkpointers(uri, option, job))
        manifests = [manifest for checkpointer in found for manifest in summary.manifests_of(checkpointer)]
        faults = [entry.fault for checkpointer in found for entry in summary.unreadable_entries(checkpointer)]
        if as_json:
            print_json([summary.as_plain(manifest) for manifest in manifests])
        elif manifests:
            print_out(table(("job", "snapshot", "age", "workers", "state", "notes"), list(map(_row, manifests))))
        else:
            print_out("there are no snapshots here")
        _print_faults(faults)


@app.command(
    epilog=examples(
        "malstrom snapshots show snapshots shop",
        "malstrom snapshots show snapshots shop --snapshot 20261122T042242123456Z-1a2b3c4d --json",
    )
)
def show(
    uri: UriArgument,
    job: JobArgument = None,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", metavar="ID", help="The snapshot; default: the newest.")
    ] = None,
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the steps and sources of a snapshot.

    Steps have the size of their state, sources their offsets.
    """
    with reporting_errors(traceback=False):
        checkpointer = _the_checkpointer(uri, option, job)
        manifest = _the_manifest(checkpointer, snapshot)
        print_json(_details(manifest)) if as_json else print_out("\n\n".join(_paragraphs(manifest)))


@app.command(epilog=examples("malstrom snapshots verify snapshots", "malstrom snapshots verify snapshots shop --json"))
def verify(
    uri: UriArgument,
    job: JobArgument = None,
    snapshot: Annotated[str | None, typer.Option("--snapshot", metavar="ID", help="Verify only this snapshot.")] = None,
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read snapshots completely and compare every digest.

    The exit code is 1 if a snapshot is damaged.
    """
    with reporting_errors(traceback=False):
        faults: list[str] = []
        verified: list[dict[str, object]] = []
        chosen = None if snapshot is None else _an_id(snapshot)
        found_jobs = _some_checkpointers(uri, option, job)
        if chosen is not None and job is None:
            having = [one for one in found_jobs if chosen in one.list_checkpoints()]
            if not having:  # the message lists the snapshots that cannot be read
                unreadable = joined_faults(entry for one in found_jobs for entry in one.entries())
                raise SnapshotError(
                    f"snapshot {chosen} was not found in {uri}{unreadable}: see `malstrom snapshots list {uri}`"
                )
            found_jobs = having
        for checkpointer in found_jobs:
            noted = newest_noted(checkpointer)
            faults += [entry.fault for entry in summary.unreadable_entries(checkpointer)]
            if chosen is None and (unlogged := missing_in(checkpointer.entries(), noted)):
                faults.append(f"job {checkpointer.job}: {unlogged}")
            for one in checkpointer.list_checkpoints() if chosen is None else [chosen]:
                found = faults_in(checkpointer, one)
                faults += found
                verified.append({"job": checkpointer.job, "snapshot": one, "faults": found})
                if not as_json:
                    print_out(f"{'damaged' if found else 'whole':<7}  {checkpointer.job}  {one}")
        if as_json:
            print_json({"snapshots": verified, "faults": faults})
        _print_faults(faults)


@app.command(
    epilog=examples("malstrom snapshots prune snapshots --keep 5", "malstrom snapshots prune snapshots shop --json")
)
def prune(
    uri: UriArgument,
    job: JobArgument = None,
    keep: Annotated[int, typer.Option("--keep", min=1, help="How many of the newest snapshots to keep.")] = 3,
    option: OptionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove old snapshots.

    The newest complete ones stay; files that belong to no snapshot are removed too.

    Savepoints stay, and so do files that a remaining snapshot needs. The job may run at the same time.
    """
    with reporting_errors(traceback=False):
        pruned: list[dict[str, object]] = []
        for checkpointer in _some_checkpointers(uri, option, job):
            removed = checkpointer.prune(keep, GRACE_S, SystemClock().now_s())
            there = checkpointer.list_checkpoints()
            pruned.append(
                {
                    "job": checkpointer.job,
                    "removed": list(removed.snapshots),
                    "removed_files": len(removed.files),
                    "snapshots": list(there),
                }
            )
            if not as_json:
                print_out(
                    f"job {checkpointer.job}: {len(removed.snapshots)} snapshots and {len(removed.files)} files "
                    f"removed, {len(there)} snapshots stay"
                )
        if as_json:
            print_json(pruned)


def kept(uri: str | None, interval_s: float | None, resume: str | None, *, allow_dropped_state: bool) -> RunKeywords:
    """Return the options of ``malstrom run`` for snapshots; raise `WrongCommand` if they do not fit together."""
    if uri is None:
        given = {
            "--interval": interval_s is not None,
            "--resume": resume is not None,
            "--allow-dropped-state": allow_dropped_state,
        }
        if names := [name for name, is_given in given.items() if is_given]:
            raise WrongCommand(f"{names[0]} needs --snapshots URI, which names the store of the snapshots")
        return {}
    try:
        snapshots = Snapshots(uri) if interval_s is None else Snapshots(uri, interval_s=interval_s)
    except PlanError as error:
        raise WrongCommand(str(error)) from None
    options: RunKeywords = {"snapshots": snapshots, "allow_dropped_state": allow_dropped_state}
    if resume is not None:
        options["resume"] = resume if resume in (LATEST, NONE) else _an_id(resume)
    return options


def store_of(uri: str, options: Sequence[str] | None) -> Store:
    """Return the store that ``uri`` names; raise `WrongCommand` for an unknown kind or a wrong option."""
    pairs = [option.partition("=") for option in options or ()]
    if wrong := [name for name, equals, _ in pairs if not (name and equals)]:
        raise WrongCommand(f"an option must be NAME=VALUE, got {wrong[0]!r}")
    try:
        return Snapshots(uri, options={name: value for name, _, value in pairs}).store()
    except PlanError as error:
        raise WrongCommand(str(error)) from None


def _checkpointers(uri: str, options: Sequence[str] | None, job: str | None) -> Iterator[StoreCheckpointer]:
    """Return the checkpointers of ``job``, or of all jobs in the store."""
    store = store_of(uri, options)
    jobs = summary.jobs_in(store) if job is None else [summary.find_job(store, job)]
    return (StoreCheckpointer(store, name) for name in jobs)


def _some_checkpointers(uri: str, options: Sequence[str] | None, job: str | None) -> list[StoreCheckpointer]:
    """Return the checkpointers of ``job`` or of all jobs; raise `SnapshotError` if there are none."""
    found = list(_checkpointers(uri, options, job))
    if not found:
        raise SnapshotError(f"there are no snapshots in {uri}: check where they are stored")
    return found


def _the_checkpointer(uri: str, options: Sequence[str] | None, job: str | None) -> StoreCheckpointer:
    store = store_of(uri, options)
    return StoreCheckpointer(store, summary.find_job(store, job))


def _the_manifest(checkpointer: StoreCheckpointer, snapshot: str | None) -> Manifest:
    if snapshot is not None:
        return checkpointer.load_manifest(_an_id(snapshot))
    manifests = summary.manifests_of(checkpointer)
    if not manifests:
        faults = joined_faults(checkpointer.entries())
        raise SnapshotError(f"job {checkpointer.job!r} has no snapshot yet in {place_of(checkpointer.store)}{faults}")
    return manifests[-1]


def _an_id(text: str) -> SnapshotId:
    if not is_snapshot_id(text):
        raise WrongCommand(f"{text!r} is not an id of a snapshot: see `malstrom snapshots list`")
    return SnapshotId(text)


def _row(manifest: Manifest) -> tuple[object, ...]:
    return (
        manifest.job,
        manifest.id,
        format_age(SystemClock().now_s() - _made_at_s(manifest)),
        manifest.workers,
        format_size(summary.size_of(manifest)),
        ", ".join(summary.notes_on(manifest)),
    )


def _paragraphs(manifest: Manifest) -> Iterator[str]:
    made = datetime.fromtimestamp(_made_at_s(manifest), UTC)
    age = format_age(SystemClock().now_s() - _made_at_s(manifest))
    notes = "".join(f"; {note}" for note in summary.notes_on(manifest))
    workers = f"{manifest.workers} worker{'' if manifest.workers == 1 else 's'}"
    yield (
        f"job {manifest.job}, snapshot {manifest.id} of {made:%Y-%m-%d %H:%M:%S} UTC, {age} ago{notes}\n"
        f"{workers}, {manifest.plan.slots:,} key groups, {format_size(summary.size_of(manifest))} of state, "
        f"entry {manifest.sequence} of the log, incarnation {manifest.incarnation}"
    )
    state = {one.step: one for one in summary.state_of(manifest)}
    rows = [
        (step, image.kind, *_state_cells(state.get(step)), image.migrate or "")
        for step, image in manifest.plan.steps.items()
    ]
    yield table(("step", "kind", "full", "deltas", "longest chain", "migrate"), rows)
    if positions := list(summary.positions_of(manifest)):
        sources = [(step, part, shown(position), "yes" if done else "") for step, part, position, done in positions]
        yield table(("source", "partition", "offset", "finished"), sources)
    if manifest.frontiers:
        yield table(("exchange", "watermark"), [(name, _shown_epoch(at)) for name, at in manifest.frontiers.items()])


def _shown_epoch(epoch: int) -> str:
    return {MIN_EPOCH: "none yet", MAX_EPOCH: "at its end"}.get(epoch, str(epoch))


def _state_cells(state: summary.StateSummary | None) -> tuple[object, object, object]:
    return ("", "", "") if state is None else (format_size(state.full), format_size(state.delta), state.chain)


def _details(manifest: Manifest) -> dict[str, object]:
    return {
        **summary.as_plain(manifest),
        "steps": {name: asdict(image) for name, image in manifest.plan.steps.items()},
        "state": [asdict(one) for one in summary.state_of(manifest)],
        "positions": [
            {"step": step, "part": part, "position": position, "finished": finished}
            for step, part, position, finished in summary.positions_of(manifest)
        ],
        "frontiers": dict(manifest.frontiers),
    }


def _print_faults(faults: Sequence[str]) -> None:
    if faults:
        typer.echo("error: " + "\n  ".join(faults), err=True)
        raise typer.Exit(FAILED)


def _made_at_s(manifest: Manifest) -> float:
    """Return the time at which the manifest was written, in seconds since 1970."""
    return datetime.fromisoformat(manifest.created).timestamp()
