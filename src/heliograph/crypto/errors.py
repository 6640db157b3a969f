"""Errors of cryptography.

Exception
└── CryptoError            a box that does not open, a key or signature that does not fit
    └── CertificateError   a chain that proves nothing (in `certificates`)
"""


class CryptoError(Exception):
    """Anything cryptographic that failed. Its text never holds a key or a plaintext."""
