"""The status page: health, throughput and latency, alerts, and what happened to one notification.

Read-only: it reads the routers' metrics as Prometheus does, and opens stores and tables read-only.
"""
