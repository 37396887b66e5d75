"""Wheels of PyTorch with LMS: official files, our library and patches, and proofs of all that."""
