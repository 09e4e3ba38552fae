"""The event loop, the engines and their KV caches once more, compiled by numba (`sim.engine=compiled`).

`Clock`, `Instance` and `KvCache` over arrays, step by step in the same order of float operations, so that both give the
same bits. `loop.run` carries out events until Python has to act; `twins` makes and grows the arrays and has the methods
of the originals. Trajectories and prompts are named by keys, engines by slots; both are recycled. Only `cores` imports
this package, when it is asked for: the light base has no numba.
"""
