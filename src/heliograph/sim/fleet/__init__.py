"""Synthetic journals of a fleet of phones and its routers, for benchmarks and tests."""

from heliograph.sim.fleet.fleet import Fleet as Fleet, FleetSettings as FleetSettings
