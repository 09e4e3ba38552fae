"""Readers of other frameworks' rollout dumps: one file a format."""
