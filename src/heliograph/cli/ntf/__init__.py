"""`heliograph ntf`: create, run and inspect a notification router."""
