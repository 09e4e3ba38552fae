"""Real processes on this machine: engines, a trainer, and the sandbox that agents' code runs in."""
