"""Measurements of what a visit costs, as ratios of two things measured in one run. No test: machines are noisy."""
