"""Models as published shapes: one TOML file each, and their loader."""

from libra.models.loader import list_models, load_model

__all__ = ["list_models", "load_model"]
