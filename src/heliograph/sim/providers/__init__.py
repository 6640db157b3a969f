"""Simulated push providers: APNs, FCM and Web Push over HTTP/2."""
