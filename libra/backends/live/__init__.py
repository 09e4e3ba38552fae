"""Real engines, real trainers and real tools: what the simulator's decisions meet on one machine or on a cluster."""
