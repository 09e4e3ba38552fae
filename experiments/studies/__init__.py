"""Studies: one file each, a function that yields cells."""
