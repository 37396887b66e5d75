"""Package indexes: reading any, and writing ours."""
