"""Decisions: jobs whose results are actions for routers."""
