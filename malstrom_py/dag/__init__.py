"""A DAG of operators that runs when it is called: build it with `DagBuilder`, run it with `DagExecutor`.

The nodes become the steps of a plan, which the engine of a job's workers builds and runs: the graph holds no record
between two messages, and the cost of a message depends on the nodes that it reaches.
"""

from malstrom_py.dag.dag_executor import DagExecutor, DagMetrics, NodeMetrics
from malstrom_py.dag.graph import Dag, DagBuilder, DagNode, Edge, NodeType

__all__ = ["Dag", "DagBuilder", "DagExecutor", "DagMetrics", "DagNode", "Edge", "NodeMetrics", "NodeType"]
