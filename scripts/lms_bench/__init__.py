"""What `lms bench` runs: workloads, their rivals, and the program of one cell.

`catalogue` knows their names without PyTorch; the rest runs in processes that have it.
"""
