"""Simulated peers, phones and load to run the parts locally; never imported by those parts."""
