"""Sources of trajectories: generators of the paper's workloads, trace replay, trace files and importers."""
