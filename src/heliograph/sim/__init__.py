"""A local world to run the parts in: peers, phones, load; never imported by what it simulates."""
