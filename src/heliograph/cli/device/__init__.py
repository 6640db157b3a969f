"""`heliograph device`: a phone in a terminal."""
