"""Times a device's operators, all-reduce, decode and training steps with torch, into the table that calibrates its GPU.

torch is imported when something is timed and nowhere else: the light base goes without it.
"""
