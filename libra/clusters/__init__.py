"""Clusters as datasheet figures: one TOML file each, and their loader."""
