"""The status page: what the system does now, what it did, and what became of one notification.

Read-only. It asks the routers as Prometheus does, and reads their stores and the pipeline's tables;
nothing it does can change them.
"""
