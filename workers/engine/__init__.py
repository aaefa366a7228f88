"""The engine of one worker: its graph, exchanges and sources, the transfer of state, and the capture of snapshots."""
