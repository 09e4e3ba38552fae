"""Attachments to RL frameworks that users run already."""
