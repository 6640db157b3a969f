"""`heliograph pipeline`: run the data pipeline."""
