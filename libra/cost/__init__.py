"""The planner's estimate of memory, training, rollout and communication, learned from telemetry alone."""
