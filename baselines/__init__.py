"""The systems that Libra is compared with: one file each."""
