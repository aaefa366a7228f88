"""The simulator: whole jobs on real workers, under a schedule that a seed decides."""
