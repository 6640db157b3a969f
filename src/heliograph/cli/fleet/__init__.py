"""`heliograph fleet`."""
