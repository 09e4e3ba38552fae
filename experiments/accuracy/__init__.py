"""How far the planner's estimate is from the simulator's truth: random configurations, drawn, simulated and priced."""
