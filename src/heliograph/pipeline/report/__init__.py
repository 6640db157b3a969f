"""The report: a day or a range as HTML, JSON and CSV."""
