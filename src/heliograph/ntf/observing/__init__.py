"""What the notification router observes: counts, journal events, and the metrics made of them."""
