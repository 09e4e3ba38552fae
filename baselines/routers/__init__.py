"""Routers that Libra's is compared with: one file each."""
