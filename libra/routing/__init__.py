"""Which engine serves a trajectory: buckets, prefix tree, C-MLFQ."""
