"""Handlers of commands, by subject. They decide in memory; changes are stored in batches."""
