"""Metrics of the routers as the page keeps them: samples, and time series for the charts."""
