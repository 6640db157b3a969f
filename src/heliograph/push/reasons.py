"""The reasons that providers document for a refusal. Other text may hold anything, also a token.

A reason becomes a label of a metric, a log line and a journal event.
"""

__all__ = ["APNS_REASONS", "FCM_REASONS", "OAUTH_REASONS", "known_reason"]

APNS_REASONS = frozenset(
    {
        *("BadCollapseId", "BadDeviceToken", "BadExpirationDate", "BadMessageId", "BadPriority"),
        *("BadTopic", "DeviceTokenNotForTopic", "DuplicateHeaders", "IdleTimeout"),
        *("InvalidPushType", "MissingDeviceToken", "MissingTopic", "PayloadEmpty"),
        *("TopicDisallowed", "BadCertificate", "BadCertificateEnvironment"),
        *("ExpiredProviderToken", "Forbidden", "InvalidProviderToken", "MissingProviderToken"),
        *("UnrelatedKeyIdInToken", "BadEnvironmentKeyIdInToken", "BadPath", "MethodNotAllowed"),
        *("ExpiredToken", "Unregistered", "PayloadTooLarge", "TooManyProviderTokenUpdates"),
        *("TooManyRequests", "InternalServerError", "ServiceUnavailable", "Shutdown"),
    }
)
FCM_REASONS = frozenset(
    {
        *("UNSPECIFIED_ERROR", "INVALID_ARGUMENT", "UNREGISTERED", "SENDER_ID_MISMATCH"),
        *("QUOTA_EXCEEDED", "UNAVAILABLE", "INTERNAL", "THIRD_PARTY_AUTH_ERROR"),
        # google.rpc.Code
        *("CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
        *("PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"),
        *("ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "DATA_LOSS"),
    }
)
OAUTH_REASONS = frozenset(
    {
        *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client"),
        *("unsupported_grant_type", "invalid_scope", "access_denied", "server_error"),
        *("temporarily_unavailable", "disabled_client", "org_internal", "deleted_client"),
    }
)


def known_reason(text: object, status: int, known: frozenset[str]) -> str:
    """Return a documented reason as it is, and the status instead of any other text."""
    if isinstance(text, str) and text in known:
        return text
    return f"HTTP-{status}" if 100 <= status < 600 else "HTTP"
