"""Actions that the pipeline decided on: judged, resolved, applied and undone."""
