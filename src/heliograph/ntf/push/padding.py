"""The length to which payloads are padded: one for each provider, so that sizes say nothing."""

import logging

from heliograph.wire.ntf.push import APNS_DOCUMENTED_SIZE, PUSH_SIZE, push_size
from heliograph.wire.ntf.tokens import PushProvider

logger = logging.getLogger(__name__)

_APNS = (PushProvider.APNS_PROD, PushProvider.APNS_DEV, PushProvider.APNS_TEST)


class Padding:
    """The padded lengths in use. APNs has a shorter one to fall back to; a device opens both."""

    def __init__(self, apns: int = PUSH_SIZE) -> None:
        self._apns = apns

    def length(self, provider: PushProvider) -> int:
        return self._apns if provider in _APNS else push_size(provider)

    def shorten(self, provider: PushProvider, refused: int) -> bool:
        """Stop using a length that was refused as too large; False if there is no shorter one."""
        if provider not in _APNS:
            return False
        if refused == self._apns > APNS_DOCUMENTED_SIZE:
            self._apns = APNS_DOCUMENTED_SIZE
            logger.warning(
                "APNs refuses payloads padded to %d bytes: using %d until the next start; set"
                " [push.apns] padded_length = %d to begin with it",
                *(refused, self._apns, self._apns),
            )
        return self._apns < refused
