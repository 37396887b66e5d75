"""Virtual environments and what is installed in them, pinned by lock files."""
