"""A live machine as the simulator's truth: one table of measured times, and processes that share its cores.

On a laptop engines, trainer and the agent loop run on fewer cores than there are processes, so each is slower while
others work. `table` holds the figures, `truth` gives them to engines and trainer, `cores` slows them down, `frontend`
is the agent loop's process. `sim.table=FILE` chooses it; everything else is the simulator's own.
"""
