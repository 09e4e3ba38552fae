"""Real tasks behind the three workloads: what a live policy is asked, which tools answer, and what earns a reward."""
