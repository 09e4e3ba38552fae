"""The published claims as data, and one script per figure or table."""
