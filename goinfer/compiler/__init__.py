"""Checkpoint to bundle: readers, graph, passes, plan; and the numpy reference executor."""
