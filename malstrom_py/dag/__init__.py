"""A DAG of operators that is fed by calls: build it with `DagBuilder`, run it with `DagExecutor`.

It stands on the executor that every worker of a job runs (``malstrom_py.workers.engine.executor``): the graph holds no
record between two messages, and costs by the nodes that a message touches.
"""

from malstrom_py.dag.builder import DagBuilder
from malstrom_py.dag.dag_executor import DagExecutor
from malstrom_py.dag.metrics import DagMetrics, NodeMetrics
from malstrom_py.dag.topology import Dag, DagNode, Edge, NodeType

__all__ = ["Dag", "DagBuilder", "DagExecutor", "DagMetrics", "DagNode", "Edge", "NodeMetrics", "NodeType"]
