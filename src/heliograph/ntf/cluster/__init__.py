"""Several processes on one store, which are one notification router."""
