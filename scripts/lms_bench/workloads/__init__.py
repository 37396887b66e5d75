"""Models as they are usually trained, one file per family."""
