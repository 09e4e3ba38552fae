"""Resource management for agentic RL post-training: Libra, its rivals, and the bench that compares them."""
