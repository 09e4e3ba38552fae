"""Models as published shapes: one TOML file each, and their loader."""
