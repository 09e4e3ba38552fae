"""The simulated cluster: heap loop, timing truth, instances, trainer, tools."""
