"""The sections of the configuration that are about push providers."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from heliograph.push import apns, fcm
from heliograph.runtime.config.options import option
from heliograph.wire.ntf.push import APNS_DOCUMENTED_SIZE, PUSH_SIZE

VAPID_FILE = "vapid.key"

_RELATIVE = "A relative path begins in this directory."
_CA_DOC = (
    "A file of PEM certificates to trust instead of the public ones, for a proxy or a simulator."
)


@dataclass(frozen=True, slots=True)
class ApnsOptions:
    """Apple's push notification service, for iPhones. Off without `key_file`."""

    # The docstring is documentation for operators. One field per option, hence many.

    key_file: str = option(
        "", f"The .p8 file that Apple gave you for token authentication. {_RELATIVE}"
    )
    key_id: str = option("", "Apple's name for the key: ten letters and digits.")
    team_id: str = option("", "Your team at Apple: ten letters and digits.")
    topic: str = option("", "The bundle ID of the app, such as chat.simplex.app.")
    other_apps: tuple[str, ...] = option(
        (),
        "Further apps, such as forks with keys of their own. Each is a text of four words:"
        " KEY_FILE KEY_ID TEAM_ID TOPIC. A device token does not say which app it is of, so the"
        " first push to a device may be tried with each.",
        example=("fork.p8 ABC1234567 DEF1234567 org.example.fork",),
    )
    url: str = option(apns.PRODUCTION_URL, "Where pushes for production tokens (AP) go.")
    sandbox_url: str = option(apns.SANDBOX_URL, "Where pushes for development tokens (AD) go.")
    test_url: str = option("", "Where pushes for test tokens (AT) go: a simulator.")
    ca_file: str = option("", _CA_DOC)
    allow_test_tokens: bool = option(False, "Whether clients may register test tokens (AT).")
    connections: int = option(2, "How many connections to each host.", minimum=1, maximum=100)
    timeout_seconds: float = option(30.0, "How long an answer may take.", unit="seconds", above=0)
    padded_length: int = option(
        PUSH_SIZE,
        "The length to which the content of a push is padded before encryption. The default is the"
        " reference's, whose pushes have 4,310 bytes; Apple documents a limit of 4,096. If Apple"
        f" refuses that, the router uses {APNS_DOCUMENTED_SIZE} until the next start, and logs it.",
        unit="bytes",
        minimum=1024,
        maximum=PUSH_SIZE,
    )

    def check(self) -> Iterator[tuple[str, str]]:
        if any(len(app.split()) != 4 for app in self.other_apps):
            yield "other_apps", "each must be KEY_FILE KEY_ID TEAM_ID TOPIC"
        elif self.other_apps and not self.key_file:
            yield "other_apps", "needs key_file and the rest of the first app"
        if self.key_file:
            for key in ("key_id", "team_id", "topic"):
                if not getattr(self, key):
                    yield key, "must be set, because key_file is"
        for key in ("url", "sandbox_url", "test_url"):
            url = getattr(self, key)
            if url and not url.startswith("https://"):
                yield key, "must begin with https://"
        if self.allow_test_tokens and not self.test_url:
            yield "test_url", "must be set, because allow_test_tokens is"


@dataclass(frozen=True, slots=True)
class FcmOptions:
    """Firebase Cloud Messaging, for Android. Off without `service_account_file`."""

    service_account_file: str = option(
        "", f"The JSON file that Google gave you for a service account. {_RELATIVE}"
    )
    url: str = option(fcm.URL, "Where pushes go.")
    token_url: str = option(
        "", "Where to get access tokens. If empty: where the service account's file says."
    )
    ca_file: str = option("", _CA_DOC)

    def check(self) -> Iterator[tuple[str, str]]:
        for key in ("url", "token_url"):
            url = getattr(self, key)
            if url and not url.startswith("https://"):
                yield key, "must begin with https://"


@dataclass(frozen=True, slots=True)
class WebPushOptions:
    """Web Push and UnifiedPush, for browsers and Android without Google."""

    enabled: bool = option(True, "Whether clients may register Web Push endpoints.")
    vapid_key_file: str = option(
        VAPID_FILE,
        "The private key that push services know this router by; `init` made it, and `vapid-key`"
        f" shows its public half. Subscriptions are lost with it. {_RELATIVE}",
    )
    subject: str = option(
        "",
        "A mailto: or https: address where push services reach you. If empty: https: and the host"
        " of this router.",
    )
    ca_file: str = option("", _CA_DOC)

    def check(self) -> Iterator[tuple[str, str]]:
        if self.subject and not self.subject.startswith(("mailto:", "https://")):
            yield "subject", "must begin with mailto: or https://"


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Push providers."""

    apns: ApnsOptions = field(default_factory=ApnsOptions)
    fcm: FcmOptions = field(default_factory=FcmOptions)
    webpush: WebPushOptions = field(default_factory=WebPushOptions)
