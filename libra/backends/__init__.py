"""Where events come from and commands go: the simulator (and, with issue "live", real engines)."""
