"""The notification router's store: tokens, subscriptions and pending pushes."""
