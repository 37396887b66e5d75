"""What `lms plan` runs: anybody's script, for a few training steps on the simulated device."""
