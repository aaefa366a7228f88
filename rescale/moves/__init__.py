"""Moves of a rescale: the placement of slots on workers, and the machines that transfer slots."""
