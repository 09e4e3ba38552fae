"""The global resource planner: topology, intervals over sorted lengths, joint search, gain against cost."""
