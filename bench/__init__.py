"""Benchmarks: `python -m bench`. Figures are ratios within one run: machines are noisy."""
