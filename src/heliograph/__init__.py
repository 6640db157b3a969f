"""The SimpleX push-notification system: wire, cryptography, transport and the parts above them."""

__version__ = "0.1.0"
