"""A phone: the composition of agent and device that `heliograph device` runs."""
