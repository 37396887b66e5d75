"""The benchmark: its cells, their runs, and the tables and plots of what came out."""
