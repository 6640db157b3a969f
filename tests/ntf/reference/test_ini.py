import pytest

from heliograph.ntf.config import NtfConfig
from heliograph.ntf.reference.ini import IniError, translate

# As the reference's `init` writes it, without its comments, and with most of its settings on.
INI = """\
[STORE_LOG]
# The server uses STM memory for persistence,
enable = on

# Database connection settings for PostgreSQL database.
db_connection = postgresql://ntf@/ntf_server_store
db_schema = ntf_server
db_pool_size = 10
# db_deleted_ttl = 21

log_stats = on

prometheus_interval = 60

[AUTH]
control_port_admin_password = hunter2
control_port_user_password = other

[TRANSPORT]
host = ntf.example.com
port = 443,5223
log_tls_errors = off
websockets = off
control_port = 5227

[SUBSCRIBER]
host_mode = onion
required_host_mode = off
socks_proxy = localhost:9050
socks_mode = always
own_server_domains = a.org b.org
use_service_credentials = on

[INACTIVE_CLIENTS]
disconnect = on
ttl = 43200
check_interval = 3600
"""


def test_everything_that_has_a_counterpart() -> None:
    translated = translate(INI)
    config = translated.config()
    assert (config.listen.host, config.listen.port, config.listen.bind) == (
        "ntf.example.com",
        443,
        "*",
    )
    assert config.stats.log_file == "ntf-server-stats.daily.log"
    assert config.metrics.port == 9100
    assert config.control.port == 5227
    assert config.control.admin_password == "hunter2"
    assert config.control.user_password == "other"
    assert config.network.socks_proxy == "localhost:9050"
    assert config.network.socks_mode == "always"
    assert config.network.allow_private is False
    assert config.subscriptions.own_domains == ("a.org", "b.org")
    assert config.subscriptions.use_service_credentials is True
    assert config.clients.inactive_after_seconds == 43_200
    assert config.clients.check_interval_seconds == 3600
    assert config.push.apns.topic == "chat.simplex.app"
    assert config.push.apns.team_id == "5NN7GUYB6T"


def test_what_has_none_is_named() -> None:
    remarks = "\n".join(translate(INI).remarks)
    for words in (
        "[STORE_LOG] enable",
        "[STORE_LOG] db_connection",
        "[STORE_LOG] prometheus_interval",
        "[TRANSPORT] port: one port is listened on: 443, and not 5223",
        "[SUBSCRIBER] host_mode",
        "APNS_KEY_FILE",
    ):
        assert words in remarks
    for words in ("websockets", "hunter2", "db_pool_size", "postgresql://"):
        assert words not in remarks


def test_the_least() -> None:
    translated = translate("[TRANSPORT]\nhost = <hostnames>\nport = 443\nnovelty = 1\n")
    assert translated.config().listen.host == NtfConfig().listen.host
    assert translated.config().clients.inactive_after_seconds == 0
    remarks = "\n".join(translated.remarks)
    assert "[TRANSPORT] host" in remarks
    assert "[TRANSPORT] novelty: not known here" in remarks


@pytest.mark.parametrize(
    ("proxy", "expected"),
    [
        ("10.0.0.1:9051", "10.0.0.1:9051"),
        (":9051", "127.0.0.1:9051"),
        ("10.0.0.1", "10.0.0.1:9050"),
        ("", "127.0.0.1:9050"),
    ],
)
def test_proxies(proxy: str, expected: str) -> None:
    translated = translate(f"[SUBSCRIBER]\nsocks_proxy = {proxy}\n")
    assert translated.config().network.socks_proxy == expected


def test_a_private_router_may_reach_private_ones() -> None:
    assert translate("[TRANSPORT]\nhost = 127.0.0.1\n").config().network.allow_private


@pytest.mark.parametrize(
    "text",
    [
        "no section = 1",
        "[TRANSPORT]\nport = many\n",
        "[TRANSPORT]\nhost = a b\n",
        "[STORE_LOG]\nlog_stats = maybe\n",
        "[SUBSCRIBER]\nsocks_mode = never\n",
        "[INACTIVE_CLIENTS]\nttl = -1\n",
    ],
)
def test_nonsense(text: str) -> None:
    with pytest.raises(IniError):
        translate(text)


def test_nobody_elses_app_by_default() -> None:
    assert NtfConfig().push.apns.topic == ""
