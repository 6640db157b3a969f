"""Subscriptions at messaging routers: one connection each, NSUB and NMSG in batches."""
