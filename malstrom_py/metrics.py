"""Metrics: the counts and times of a running job, for its user, for Prometheus and for OpenTelemetry.

`JobHandle.metrics` returns them typed; ``metrics=Metrics(port=…)`` of every runtime serves them to Prometheus, as
`METRICS` lists them.

>>> busiest = max(StepMetrics("map", busy_s=1.5), StepMetrics("sink", busy_s=0.5), key=lambda step: step.busy_s)
>>> busiest.kind
'map'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from socket import gethostname
from typing import Final, Literal

import msgspec

from malstrom_py.errors import PlanError

__all__ = [
    "METRICS",
    "AutoscaleMetrics",
    "EdgeMetrics",
    "ExchangeMetrics",
    "HeavyKey",
    "HeavySlot",
    "HotKey",
    "JobMetrics",
    "Metric",
    "Metrics",
    "MoveMetrics",
    "PartMetrics",
    "RateMetrics",
    "ShadowMetrics",
    "SnapshotMetrics",
    "StepMetrics",
    "WorkerMetrics",
]

PORT: Final = 9464
"""The port on which metrics are served by default."""

LOOPBACK: Final = "127.0.0.1"

RATES_S: Final = 600.0
"""For how long a job keeps its rates."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """How a runtime serves the metrics of its jobs: at ``http://host:port/metrics``, in the format of Prometheus.

    ``port``: 0 for any free one; the log has the address. ``host``: only this machine can read them by default.
    If ``opentelemetry-api`` is installed, the same metrics are registered there too, with spans for snapshots, rescales
    and recoveries; ``opentelemetry=False`` leaves that out.

    Raises: PlanError: an option is wrong.
    """

    port: int = PORT
    host: str = LOOPBACK
    opentelemetry: bool = True

    def __post_init__(self) -> None:
        check_address(self.host, self.port, "mp.Metrics")


def check_address(host: object, port: object, what: str) -> None:
    """Raise `PlanError` unless a server can listen at ``host`` and ``port``, options of ``what``."""
    if type(port) is not int or not 0 <= port < 1 << 16:
        raise PlanError(f"{what}: port must be a whole number from 0 to 65535, got {port!r}")
    if not isinstance(host, str) or not host or not _is_encodable(host):
        raise PlanError(f"{what}: host must be a name or an address of this machine, got {host!r}")


def _is_encodable(host: str) -> bool:
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def url_of(host: str, port: int) -> str:
    """Return the address of a server; one that listens at all addresses of this machine is reached by its name.

    >>> url_of("localhost", 9464), url_of("::1", 9464)
    ('http://localhost:9464', 'http://[::1]:9464')
    """
    host = gethostname() if host in {"0.0.0.0", "::"} else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class StepMetrics(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """What one step did, in sum over all workers, in this run.

    ``in_per_s``, ``out_per_s``: the rates over the last seconds. ``busy_s``: the time that workers have spent in this
    step, and ``busy``: the same as a share of the time of one worker, over the last seconds; 2.0 are two workers.
    ``keys`` and ``state_bytes`` of steps with keyed state: the number of keys, and about how many bytes their state
    takes, estimated from a sample. ``watermark``: the last one, as seconds since 1970, and ``lag_s``: how far it is
    from now. ``place``: the file and line of the function. ``compiled``: "compiled", or why not; empty for a step
    without functions of a row. Rows that were dropped are counted by cause: ``filtered``,
    ``late``, ``unmatched`` (by a join), ``skipped`` and ``dead_letters`` (errors by policy).
    """

    kind: str
    rows_in: int = 0
    rows_out: int = 0
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    busy_s: float = 0.0
    busy: float = 0.0
    filtered: int = 0
    late: int = 0
    unmatched: int = 0
    skipped: int = 0
    dead_letters: int = 0
    keys: int | None = None
    state_bytes: int | None = None
    watermark: float | None = None
    lag_s: float | None = None
    place: str = ""
    compiled: str = ""


class PartMetrics(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """One partition of a source that ``worker`` reads. ``position``: where it is, for people.

    ``lag_rows``, ``lag_bytes``: how much could be read and was not yet; None where the source does not know.
    ``watermark``: that of the partition as seconds since 1970; ``lag_s``: how far it is from now. ``idle``: the
    partition does not hold event time back.
    """

    source: str
    part: str
    worker: int
    rows: int = 0
    position: str = ""
    lag_rows: int | None = None
    lag_bytes: int | None = None
    watermark: float | None = None
    lag_s: float | None = None
    idle: bool = False


class ExchangeMetrics(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The exchange after one ``key_by``, in sum over all workers.

    ``rows``: routed, and ``bytes``: sent to other workers. ``backlog``: rows that wait for credit now. ``waiting_s``:
    how long workers have had such a backlog, and ``waiting``: the same as a share of their time, over the last seconds.
    """

    rows: int = 0
    bytes: int = 0
    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    backlog: int = 0
    waiting_s: float = 0.0
    waiting: float = 0.0


class EdgeMetrics(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The stream ``port`` of step ``source`` that step ``target`` reads. ``exchange``: rows change worker on it."""

    source: str
    port: str
    target: str
    exchange: bool = False
    rows: int = 0
    per_s: float = 0.0


class WorkerMetrics(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """One worker. Its time is ``busy_s`` in steps, ``waiting_s`` with a backlog, the rest idle; ``busy`` and
    ``waiting`` are shares over the last seconds.

    ``cpu_s`` and ``rss_bytes``: of its process ``pid`` on ``host``; workers of a job in one process share one. ``cpu``:
    cores in use over the last seconds. ``rows_in``: the rows that it has read, or those that have arrived by one
    exchange, the one with the most, if they are more: a row counts once, however many steps take it. ``keys``: with
    state; ``slots``: that it owns. With ``state=mp.State(…)`` ``state_in_memory`` and ``state_on_disk`` are the
    bytes of the states that may go to disk; since some are there, ``found_on_disk`` counts the keys of batches whose
    state was, ``not_on_disk`` the others.
    """

    worker: int
    host: str = ""
    pid: int = 0
    cpu_s: float = 0.0
    cpu: float = 0.0
    rss_bytes: int = 0
    state_in_memory: int = 0
    state_on_disk: int = 0
    found_on_disk: int = 0
    not_on_disk: int = 0
    busy_s: float = 0.0
    waiting_s: float = 0.0
    busy: float = 0.0
    waiting: float = 0.0
    rows_in: int = 0
    in_per_s: float = 0.0
    keys: int = 0
    slots: int = 0


class HeavyKey(msgspec.Struct, frozen=True):
    """A key of ``worker`` that makes ``share`` of all rows which arrive by exchange ``step``, from a sample of them.

    ``key``: its text, shortened.
    """

    step: str
    key: str
    share: float
    worker: int


class HotKey(msgspec.Struct, frozen=True):
    """A key that is too heavy for one worker: it makes ``share`` of all rows which arrive by exchange ``step``, more
    than one of the workers is to have, and ``worker`` is busy with it for the part ``busy`` of its time.

    More workers do not help: only fewer rows of the key, or less work for each.
    """

    step: str
    key: str
    share: float
    busy: float
    worker: int


class HeavySlot(msgspec.Struct, frozen=True):
    """A slot of ``worker`` whose keys make ``share`` of all rows which arrive by exchange ``step``, from a sample."""

    step: str
    slot: int
    share: float
    worker: int


class SnapshotMetrics(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The snapshots of a job. ``made``: in this run; ``last``: the id of the last one, ``at`` its time in seconds since
    1970; ``bytes``: written for it, ``duration_s``: from its barrier to its commit, ``pause_s``: the longest pause of a
    worker for it. ``interval_s``: the seconds between the starts of two; None: only on request.
    """

    made: int = 0
    last: str | None = None
    at: float | None = None
    bytes: int = 0
    duration_s: float = 0.0
    pause_s: float = 0.0
    interval_s: float | None = None


class MoveMetrics(msgspec.Struct, frozen=True):
    """A rescale in progress, as `JobStatus.moving`."""

    move: int
    slots: int
    of_slots: int
    keys: int
    bytes: int


class AutoscaleMetrics(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The autoscaler of a job. ``min``, ``max``, ``target``: its limits; ``decisions``: how often it has changed the
    number of workers, ``refused``: how often it could not.

    ``reason``: of its last sample, also where the workers stay. ``arrival_per_s``, ``needed_per_s``,
    ``capacity_per_s``: the numbers that it is based on, as in `malstrom_py.events.Autoscaled`.
    """

    min: int
    max: int
    target: float
    decisions: int = 0
    refused: int = 0
    reason: str = ""
    arrival_per_s: float = 0.0
    needed_per_s: float = 0.0
    capacity_per_s: float = 0.0

    @property
    def load(self) -> float | None:
        """What must be taken by what the workers take at their target: 1.0 at the target; None before it is known."""
        return self.needed_per_s / self.capacity_per_s if self.capacity_per_s else None


class ShadowMetrics(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The comparison of a step with its shadow: counts, and why the new code has stopped, as in `ShadowReport`."""

    compared: int = 0
    different: int = 0
    failure: str = ""


class RateMetrics(msgspec.Struct, frozen=True):
    """The rates of a job at one moment, ``at`` in seconds since 1970: rows read and written per second.

    ``busy`` and ``waiting``: the mean of the shares of their time for which workers were busy, and had a backlog.
    ``event_lag_s``: how far event time is from now, of the partition with the largest lag; None without event time.
    """

    at: float
    read_per_s: float
    written_per_s: float
    busy: float
    waiting: float
    event_lag_s: float | None = None


class JobMetrics(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The metrics of one job, from `JobHandle.metrics`.

    ``state``, ``phase``, ``error``, ``restarts``: as in `JobStatus`. ``at``: the time in seconds since 1970, and
    ``duration_s``: of this run. ``workers``: all that are members; ``steps``: in the order of the plan. ``rescales``:
    how many have ended, and with them ``moved_slots``, ``moved_keys``, ``moved_bytes`` and ``rescale_s`` in sum.
    ``hot_keys``: those that are too heavy for one worker. ``imbalance``: the load of the most loaded worker over the
    mean, by the rows of the slots that workers own, 1.0 if all are alike; None until that is measured. ``shadows``: of
    each step that has one. ``age_s``: how old the values are. ``rates``: those of the last ten minutes, about one a
    second, if `JobHandle.metrics` was asked ``since`` when.

    >>> metrics = JobMetrics("flights", "running", "steady", steps={"in": StepMetrics("source", rows_in=3)})
    >>> metrics.read
    3
    """

    job: str
    state: str
    phase: str
    at: float = 0.0
    duration_s: float = 0.0
    age_s: float = 0.0
    error: str | None = None
    steps: dict[str, StepMetrics] = {}
    edges: list[EdgeMetrics] = []
    parts: list[PartMetrics] = []
    exchanges: dict[str, ExchangeMetrics] = {}
    workers: list[WorkerMetrics] = []
    heavy_keys: list[HeavyKey] = []
    heavy_slots: list[HeavySlot] = []
    hot_keys: list[HotKey] = []
    imbalance: float | None = None
    snapshots: SnapshotMetrics | None = None
    moving: MoveMetrics | None = None
    autoscale: AutoscaleMetrics | None = None
    shadows: dict[str, ShadowMetrics] = {}
    restarts: int = 0
    rescales: int = 0
    moved_slots: int = 0
    moved_keys: int = 0
    moved_bytes: int = 0
    rescale_s: float = 0.0
    rates: list[RateMetrics] = []

    @property
    def read(self) -> int:
        """Records read by all sources."""
        return self._sum("source")

    @property
    def written(self) -> int:
        """Records written to all sinks."""
        return self._sum("sink")

    @property
    def watermark(self) -> float | None:
        """The smallest watermark of the timed steps in seconds since 1970; None without any."""
        return min((step.watermark for step in self.steps.values() if step.watermark is not None), default=None)

    @property
    def lag_rows(self) -> int | None:
        """How many records all partitions could read and have not; None where no source knows."""
        known = [part.lag_rows for part in self.parts if part.lag_rows is not None]
        return sum(known) if known else None

    def _sum(self, kind: str) -> int:
        return sum(step.rows_in for step in self.steps.values() if step.kind == kind)

    def __str__(self) -> str:
        workers = f"{len(self.workers)} worker{'' if len(self.workers) == 1 else 's'}"
        return f"job {self.job}: {self.state}, {workers}, {self.read:,} read, {self.written:,} written"


Labels = Mapping[str, str]
Values = Callable[[JobMetrics], Iterable[tuple[Labels, float]]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported metric. ``name``: with its unit, by the conventions of Prometheus, without ``_total`` for a counter.

    ``labels``: beside ``malstrom_job``, which all have. ``values``: returns each value with its labels.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...]
    values: Values

    @property
    def exported(self) -> str:
        """The name in Prometheus."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


@dataclass(frozen=True, slots=True)
class _Rows:
    """What some metrics are figures of. ``found`` returns each with its labels: the steps of a job, its workers, …"""

    labels: tuple[str, ...]
    found: Callable[[JobMetrics], Iterable[tuple[Labels, object]]]

    def counter(self, name: str, help: str, field: str) -> Metric:
        """Return the counter that is ``field`` of each."""
        return Metric(name, "counter", help, self.labels, self._values(field))

    def gauge(self, name: str, help: str, field: str) -> Metric:
        """Return the gauge that is ``field`` of each, where that is known."""
        return Metric(name, "gauge", help, self.labels, self._values(field))

    def _values(self, field: str) -> Values:
        def values(metrics: JobMetrics) -> Iterator[tuple[Labels, float]]:
            for labels, row in self.found(metrics):
                if (value := getattr(row, field)) is not None:
                    yield labels, value

        return values


_JOB: Final = _Rows((), lambda job: [({}, job)])
_STEPS: Final = _Rows(("step",), lambda job: (({"step": name}, step) for name, step in job.steps.items()))
_SOURCES: Final = _Rows(
    ("source",), lambda job: (({"source": name}, step) for name, step in job.steps.items() if step.kind == "source")
)
_PARTS: Final = _Rows(
    ("source", "part"), lambda job: (({"source": part.source, "part": part.part}, part) for part in job.parts)
)
_EXCHANGES: Final = _Rows(("exchange",), lambda job: (({"exchange": name}, one) for name, one in job.exchanges.items()))
_WORKERS: Final = _Rows(("worker",), lambda job: (({"worker": str(one.worker)}, one) for one in job.workers))
_AUTOSCALE: Final = _Rows((), lambda job: [] if job.autoscale is None else [({}, job.autoscale)])
_SNAPSHOTS: Final = _Rows((), lambda job: [] if job.snapshots is None else [({}, job.snapshots)])


def _dropped(metrics: JobMetrics) -> Iterator[tuple[Labels, float]]:
    for name, step in metrics.steps.items():
        for policy, rows in (("skip", step.skipped), ("dead-letter", step.dead_letters)):
            yield {"step": name, "policy": policy}, rows


def _states(metrics: JobMetrics) -> Iterator[tuple[Labels, float]]:
    for state in STATES:
        yield {"state": state}, metrics.state == state


def _heavy_keys(metrics: JobMetrics) -> Iterator[tuple[Labels, float]]:
    worst: dict[str, float] = {}
    for heavy in metrics.heavy_keys:
        worst[heavy.step] = max(heavy.share, worst.get(heavy.step, 0.0))
    for step, share in worst.items():
        yield {"exchange": step}, share


def _hot_keys(metrics: JobMetrics) -> Iterator[tuple[Labels, float]]:
    for exchange in metrics.exchanges:
        yield {"exchange": exchange}, sum(hot.step == exchange for hot in metrics.hot_keys)


def _where(metrics: JobMetrics) -> Iterator[tuple[Labels, float]]:
    for worker in metrics.workers:
        if worker.state_in_memory or worker.state_on_disk:
            yield {"worker": str(worker.worker), "where": "memory"}, worker.state_in_memory
            yield {"worker": str(worker.worker), "where": "disk"}, worker.state_on_disk


def _lookups(metrics: JobMetrics) -> Iterator[tuple[Labels, float]]:
    for worker in metrics.workers:
        if worker.found_on_disk or worker.not_on_disk:
            yield {"worker": str(worker.worker), "where": "memory"}, worker.not_on_disk
            yield {"worker": str(worker.worker), "where": "disk"}, worker.found_on_disk


STATES: Final = ("running", "rescaling", "recovering", "stopping", "finished", "failed", "stopped")
"""The states of a job."""

ENDED: Final = frozenset({"finished", "failed", "stopped"})
"""Those of a job that has ended."""

METRICS: Final[tuple[Metric, ...]] = (
    Metric("malstrom_job_state", "gauge", "1 for the state that the job is in, 0 for the others", ("state",), _states),
    _JOB.gauge("malstrom_job_uptime_seconds", "Duration of this run", "duration_s"),
    Metric("malstrom_job_workers", "gauge", "Workers that are members", (), lambda job: [({}, len(job.workers))]),
    _JOB.counter("malstrom_job_restarts", "Restarts from a snapshot", "restarts"),
    _JOB.gauge(
        "malstrom_job_metrics_age_seconds", "Age of these values: it grows while the job does not answer", "age_s"
    ),
    _STEPS.counter("malstrom_step_in_rows", "Rows that a step has taken", "rows_in"),
    _STEPS.counter("malstrom_step_out_rows", "Rows that a step has sent", "rows_out"),
    _STEPS.counter("malstrom_step_busy_seconds", "Time that workers have spent in a step", "busy_s"),
    _STEPS.counter("malstrom_step_filtered_rows", "Rows that a filter has dropped", "filtered"),
    _STEPS.counter("malstrom_step_late_rows", "Rows that were late", "late"),
    _STEPS.counter(
        "malstrom_step_unmatched_rows", "Rows that a join has dropped because they have no partner", "unmatched"
    ),
    Metric("malstrom_step_failed_rows", "counter", "Rows that on_error= has dropped", ("step", "policy"), _dropped),
    _STEPS.gauge("malstrom_step_keys", "Keys with state in a step", "keys"),
    _STEPS.gauge(
        "malstrom_step_state_bytes", "Size of the state of a step, estimated from a sample of its keys", "state_bytes"
    ),
    _STEPS.gauge(
        "malstrom_step_watermark_timestamp_seconds",
        "Last watermark of a step, in seconds since 1970",
        "watermark",
    ),
    _SOURCES.counter("malstrom_source_read_rows", "Rows that a source has read", "rows_in"),
    _PARTS.gauge("malstrom_source_lag_rows", "Rows of a partition that could be read now", "lag_rows"),
    _PARTS.gauge("malstrom_source_lag_bytes", "Bytes of a partition that could be read now", "lag_bytes"),
    _PARTS.gauge("malstrom_source_event_lag_seconds", "The time now less the watermark of a partition", "lag_s"),
    _EXCHANGES.counter("malstrom_exchange_rows", "Rows that an exchange has routed", "rows"),
    _EXCHANGES.counter("malstrom_exchange_sent_bytes", "Bytes that an exchange has sent to other workers", "bytes"),
    _EXCHANGES.gauge("malstrom_exchange_backlog_rows", "Rows that wait for credit now", "backlog"),
    _EXCHANGES.counter(
        "malstrom_exchange_waiting_seconds", "Time for which workers had a backlog here: back-pressure", "waiting_s"
    ),
    Metric(
        "malstrom_exchange_heaviest_key_ratio",
        "gauge",
        "Share of the heaviest key in the rows of an exchange",
        ("exchange",),
        _heavy_keys,
    ),
    Metric(
        "malstrom_exchange_hot_keys",
        "gauge",
        "Keys that are too heavy for one worker",
        ("exchange",),
        _hot_keys,
    ),
    _WORKERS.counter("malstrom_worker_busy_seconds", "Time that a worker has spent in steps", "busy_s"),
    _WORKERS.counter("malstrom_worker_waiting_seconds", "Time for which a worker had a backlog", "waiting_s"),
    _WORKERS.counter("malstrom_worker_cpu_seconds", "CPU time of the process of a worker", "cpu_s"),
    _WORKERS.gauge("malstrom_worker_resident_memory_bytes", "Memory of the process of a worker", "rss_bytes"),
    Metric(
        "malstrom_worker_state_bytes", "gauge", "State that may go to disk, by where it is", ("worker", "where"), _where
    ),
    Metric(
        "malstrom_worker_state_lookup_keys",
        "counter",
        "Keys of batches since some state is on disk, by where their states were; those of new keys in memory",
        ("worker", "where"),
        _lookups,
    ),
    _WORKERS.gauge("malstrom_worker_keys", "Keys with state on a worker", "keys"),
    _WORKERS.gauge("malstrom_worker_slots", "Key groups that a worker owns", "slots"),
    _JOB.gauge(
        "malstrom_job_imbalance_ratio",
        "Load of the most loaded worker over the mean of all: 1 is balanced",
        "imbalance",
    ),
    _SNAPSHOTS.counter("malstrom_snapshots", "Snapshots completed in this run", "made"),
    _SNAPSHOTS.gauge(
        "malstrom_snapshot_last_timestamp_seconds", "Time of the last snapshot, in seconds since 1970", "at"
    ),
    _SNAPSHOTS.gauge("malstrom_snapshot_last_bytes", "Bytes written for the last snapshot", "bytes"),
    _SNAPSHOTS.gauge(
        "malstrom_snapshot_last_duration_seconds",
        "Duration of the last snapshot, from its barrier to its commit",
        "duration_s",
    ),
    _SNAPSHOTS.gauge(
        "malstrom_snapshot_last_pause_seconds", "Longest pause of a worker for the last snapshot", "pause_s"
    ),
    _JOB.counter("malstrom_rescales", "Rescales that have ended", "rescales"),
    _JOB.counter("malstrom_rescale_duration_seconds", "Duration of all rescales", "rescale_s"),
    _JOB.counter("malstrom_rescale_moved_slots", "Key groups that rescales have moved", "moved_slots"),
    _JOB.counter("malstrom_rescale_moved_keys", "Keys with state that rescales have moved", "moved_keys"),
    _JOB.counter("malstrom_rescale_moved_bytes", "Bytes of state that rescales have moved", "moved_bytes"),
    _AUTOSCALE.counter("malstrom_autoscale_decided_rescales", "Rescales by load", "decisions"),
    _AUTOSCALE.counter("malstrom_autoscale_refused_rescales", "Rescales by load that could not be made", "refused"),
    _AUTOSCALE.gauge(
        "malstrom_autoscale_load_ratio", "Rows to be taken, by those that the workers take at their target", "load"
    ),
)
"""All exported metrics."""
