"""The routers' event journal: what happened, without identifying anyone.

It never contains a device token, queue ID, key or address.
"""
