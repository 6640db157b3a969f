"""Spark itself: Java, the session, submission to a cluster, schemas."""
