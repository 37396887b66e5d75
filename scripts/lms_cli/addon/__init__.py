"""The small wheel, torch_lms: an addition to an official PyTorch."""
