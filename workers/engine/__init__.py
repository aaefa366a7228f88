"""The engine of one worker: its graph, exchanges, sources, and the state that it hands over."""
