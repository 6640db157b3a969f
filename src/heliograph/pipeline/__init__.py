"""The data pipeline: from the journals of all parts to a ledger, statistics, health and reports.

It runs on Spark through PySpark, in a process of its own: routers neither need it nor notice it.
Each job is a file of pure functions from DataFrame to DataFrame; `tables` is the only module that
commits, and `runner` the only one that orders the jobs.
"""
