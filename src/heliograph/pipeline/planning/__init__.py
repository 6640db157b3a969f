"""Capacity: what operations cost, how usage grows, when a resource runs out, what a fleet needs."""
