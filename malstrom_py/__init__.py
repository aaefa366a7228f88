"""malstrom-py: an elastic, keyed, stateful stream processor for Python.

Build a `Job`, `run` it, or `collect` the values of one of its streams:

>>> import malstrom_py as mp
>>> from malstrom_py import sources
>>> job = mp.Job("letters")
>>> words = job.source("words", sources.Memory(["ant", "bee", "asp"]))
>>> mp.collect(words.key_by("letter", lambda word: word[0]).count("seen"))
[1, 1, 2]
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING

try:
    import fcntl as _fcntl  # noqa: F401  it is only tried
except ImportError:
    raise ImportError(
        "malstrom-py runs on Linux and macOS. Python on Windows has no fcntl, by which jobs lock their files: run it "
        "in the Windows Subsystem for Linux (wsl --install), or in a container",
        name="fcntl",
    ) from None

try:
    for _room in ("malstrom_py.rescale", "malstrom_py.workers"):
        _import(_room)
except ModuleNotFoundError as _error:
    if _error.name not in {"malstrom_py.rescale", "malstrom_py.workers"}:
        raise
    _folder = _error.name.partition(".")[2]
    raise ImportError(
        f"malstrom_py/{_folder} is missing: in a clone it is a link to ../{_folder}, which this checkout does not "
        f"have: it comes from a zip archive, or git has core.symlinks=false. Install it instead of importing it in "
        f"place (pip install .), or make the links, in its folder: ln -sfn ../rescale "
        f"malstrom_py/rescale; ln -sfn ../workers malstrom_py/workers",
        name=_error.name,
    ) from None

from malstrom_py.lazy_names import lazy_names

if TYPE_CHECKING:
    from malstrom_py import agg, events, logs, metrics, partitioners, sinks, sources, windows
    from malstrom_py.builder.job import Job
    from malstrom_py.builder.keyed_stream import KeyedStreamBuilder
    from malstrom_py.builder.plan import Plan
    from malstrom_py.builder.stream import StreamBuilder
    from malstrom_py.data.epochs import EpochGenerator, EpochTracker, limit_out_of_orderness
    from malstrom_py.data.messages import (
        MAX_EPOCH,
        MIN_EPOCH,
        AbsBarrier,
        Acquire,
        Collect,
        DataMessage,
        DeadLetter,
        Epoch,
        Interrogate,
        PersistenceBackend,
        Rescale,
        SuspendMarker,
    )
    from malstrom_py.errors import (
        CodecError,
        ControlError,
        DagError,
        DeadlineError,
        FencedError,
        InternalError,
        JobEnded,
        JobNotFound,
        JobRunning,
        MalformedRecord,
        MalstromError,
        NodeNotFound,
        OperationInProgress,
        OperatorError,
        PeerError,
        PlanError,
        ReloadError,
        RestoreFailed,
        SinkError,
        SnapshotError,
        SourceError,
        SparkError,
        StateError,
    )
    from malstrom_py.metrics import JobMetrics, Metrics
    from malstrom_py.operators.enrich.calls import Cache
    from malstrom_py.operators.join import Pair
    from malstrom_py.operators.logic import KeyedLogic, Output, StatefulLogic, StatelessLogic
    from malstrom_py.rescale.autoscaling import Autoscale
    from malstrom_py.rescale.channels.channel import Credit
    from malstrom_py.snapshot.checkpointer import Checkpointer
    from malstrom_py.snapshot.snapshots import Snapshots
    from malstrom_py.state.memory import State
    from malstrom_py.testing.why import CapturedRecord, Why, why
    from malstrom_py.worker_context import PerWorker, per_worker
    from malstrom_py.workers.control.state_changes import StateChanges
    from malstrom_py.workers.control.step_state import StepState
    from malstrom_py.workers.control.tap import Tap, TapRecord
    from malstrom_py.workers.engine.flow_limits import Batching
    from malstrom_py.workers.monitoring.dashboard import Dashboard
    from malstrom_py.workers.processes.runtime import Processes
    from malstrom_py.workers.ray.runtime import RayRuntime
    from malstrom_py.workers.reports.job_status import JobStatus, ReloadReport, RescaleReport, SnapshotStatus
    from malstrom_py.workers.reports.result import RunResult, StepCounts
    from malstrom_py.workers.reports.shadows import ShadowReport
    from malstrom_py.workers.runtime.in_process import InProcess, collect, run
    from malstrom_py.workers.runtime.job_handle import JobHandle
    from malstrom_py.workers.runtime.run_options import RunOptions
    from malstrom_py.workers.runtime.supervisor import Restart
    from malstrom_py.workers.simulator.simulation import SimulatedResult, Simulation
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "malstrom_py.agg": "agg",
            "malstrom_py.events": "events",
            "malstrom_py.logs": "logs",
            "malstrom_py.metrics": "metrics JobMetrics Metrics",
            "malstrom_py.partitioners": "partitioners",
            "malstrom_py.sinks": "sinks",
            "malstrom_py.sources": "sources",
            "malstrom_py.windows": "windows",
            "malstrom_py.builder.job": "Job",
            "malstrom_py.builder.keyed_stream": "KeyedStreamBuilder",
            "malstrom_py.builder.plan": "Plan",
            "malstrom_py.builder.stream": "StreamBuilder",
            "malstrom_py.data.epochs": "EpochGenerator EpochTracker limit_out_of_orderness",
            "malstrom_py.data.messages": (
                "MAX_EPOCH MIN_EPOCH AbsBarrier Acquire Collect DataMessage DeadLetter Epoch Interrogate "
                "PersistenceBackend Rescale SuspendMarker"
            ),
            "malstrom_py.errors": (
                "CodecError ControlError DagError DeadlineError FencedError InternalError JobEnded JobNotFound "
                "JobRunning MalformedRecord MalstromError NodeNotFound OperationInProgress OperatorError "
                "PeerError PlanError ReloadError RestoreFailed SinkError SnapshotError SourceError "
                "SparkError StateError"
            ),
            "malstrom_py.operators.enrich.calls": "Cache",
            "malstrom_py.operators.join": "Pair",
            "malstrom_py.operators.logic": "KeyedLogic Output StatefulLogic StatelessLogic",
            "malstrom_py.rescale.autoscaling": "Autoscale",
            "malstrom_py.rescale.channels.channel": "Credit",
            "malstrom_py.snapshot.checkpointer": "Checkpointer",
            "malstrom_py.snapshot.snapshots": "Snapshots",
            "malstrom_py.state.memory": "State",
            "malstrom_py.testing.why": "CapturedRecord Why why",
            "malstrom_py.worker_context": "PerWorker per_worker",
            "malstrom_py.workers.engine.flow_limits": "Batching",
            "malstrom_py.workers.monitoring.dashboard": "Dashboard",
            "malstrom_py.workers.processes.runtime": "Processes",
            "malstrom_py.workers.ray.runtime": "RayRuntime",
            "malstrom_py.workers.control.state_changes": "StateChanges",
            "malstrom_py.workers.control.step_state": "StepState",
            "malstrom_py.workers.reports.job_status": "JobStatus ReloadReport RescaleReport SnapshotStatus",
            "malstrom_py.workers.reports.shadows": "ShadowReport",
            "malstrom_py.workers.reports.result": "RunResult StepCounts",
            "malstrom_py.workers.runtime.in_process": "InProcess collect run",
            "malstrom_py.workers.runtime.job_handle": "JobHandle",
            "malstrom_py.workers.runtime.run_options": "RunOptions",
            "malstrom_py.workers.runtime.supervisor": "Restart",
            "malstrom_py.workers.control.tap": "Tap TapRecord",
            "malstrom_py.workers.simulator.simulation": "SimulatedResult Simulation",
        },
        "MODULE",
    )

__version__ = "0.2.0"

__all__ = [
    "MAX_EPOCH",
    "MIN_EPOCH",
    "AbsBarrier",
    "Acquire",
    "Autoscale",
    "Batching",
    "Cache",
    "CapturedRecord",
    "Checkpointer",
    "CodecError",
    "Collect",
    "ControlError",
    "Credit",
    "DagError",
    "Dashboard",
    "DataMessage",
    "DeadLetter",
    "DeadlineError",
    "Epoch",
    "EpochGenerator",
    "EpochTracker",
    "FencedError",
    "InProcess",
    "InternalError",
    "Interrogate",
    "Job",
    "JobEnded",
    "JobHandle",
    "JobMetrics",
    "JobNotFound",
    "JobRunning",
    "JobStatus",
    "KeyedLogic",
    "KeyedStreamBuilder",
    "MalformedRecord",
    "MalstromError",
    "Metrics",
    "NodeNotFound",
    "OperationInProgress",
    "OperatorError",
    "Output",
    "Pair",
    "PeerError",
    "PerWorker",
    "PersistenceBackend",
    "Plan",
    "PlanError",
    "Processes",
    "RayRuntime",
    "ReloadError",
    "ReloadReport",
    "Rescale",
    "RescaleReport",
    "Restart",
    "RestoreFailed",
    "RunOptions",
    "RunResult",
    "ShadowReport",
    "SimulatedResult",
    "Simulation",
    "SinkError",
    "SnapshotError",
    "SnapshotStatus",
    "Snapshots",
    "SourceError",
    "SparkError",
    "State",
    "StateChanges",
    "StateError",
    "StatefulLogic",
    "StatelessLogic",
    "StepCounts",
    "StepState",
    "StreamBuilder",
    "SuspendMarker",
    "Tap",
    "TapRecord",
    "Why",
    "__version__",
    "agg",
    "collect",
    "events",
    "limit_out_of_orderness",
    "logs",
    "metrics",
    "partitioners",
    "per_worker",
    "run",
    "sinks",
    "sources",
    "why",
    "windows",
]
