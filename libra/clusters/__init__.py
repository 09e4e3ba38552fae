"""Clusters as datasheet figures: one TOML file each, and their loader."""

from libra.clusters.loader import list_clusters, load_cluster

__all__ = ["list_clusters", "load_cluster"]
