"""A DAG of operators that runs when it is called: build it with `DagBuilder`, run it with `DagExecutor`.

It uses the executor of a job's workers (``malstrom_py.workers.engine.executor``): the graph holds no record between two
messages, and the cost of a message depends on the nodes that it reaches.
"""

from malstrom_py.dag.builder import DagBuilder
from malstrom_py.dag.dag_executor import DagExecutor
from malstrom_py.dag.running import DagMetrics, NodeMetrics
from malstrom_py.dag.topology import Dag, DagNode, Edge, NodeType

__all__ = ["Dag", "DagBuilder", "DagExecutor", "DagMetrics", "DagNode", "Edge", "NodeMetrics", "NodeType"]
