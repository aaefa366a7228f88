"""The DAG executor: how the graph of one worker is run. The graph holds no record between two messages."""
