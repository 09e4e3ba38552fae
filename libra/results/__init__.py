"""What a run leaves behind: cell identity, row schemas, the atomic store, provenance and summary metrics."""
