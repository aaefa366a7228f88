"""Moves of a rescale: who owns which slot, and the machines that hand slots over."""
