"""The command line, studies, launchers and the run of one cell."""
