from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.ntf.config import DeliveryOptions, NtfConfig
from heliograph.ntf.providers import create_vapid_key, load_vapid, make_providers
from heliograph.ntf.push.options import ApnsOptions, FcmOptions, PushOptions, WebPushOptions
from heliograph.push.connecting import connections_to
from heliograph.push.h2_client import H2Connections
from heliograph.push.http import HttpSettings
from heliograph.push.vapid import generate_vapid_key
from heliograph.push.webpush import WebPushConfig, WebPushProvider
from heliograph.runtime.errors import ConfigError
from heliograph.wire.ntf.tokens import PushProvider

NULL = {PushProvider.APNS_NULL}
APNS = ApnsOptions(key_file="k.p8", key_id="i", team_id="t", topic="o")


def config(**sections: object) -> NtfConfig:
    return NtfConfig(push=PushOptions(**sections))  # type: ignore[arg-type]


def test_without_any(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert make_providers(NtfConfig(), tmp_path).keys() == NULL
    assert "Web Push is off" in caplog.text


def test_all(tmp_path: Path) -> None:
    create_vapid_key(tmp_path)
    (tmp_path / "k.p8").write_bytes(generate_vapid_key())
    providers = make_providers(config(apns=APNS), tmp_path)
    assert providers.keys() == NULL | {
        PushProvider.APNS_PROD,
        PushProvider.APNS_DEV,
        PushProvider.WEB_PUSH,
    }
    assert len(set(map(id, providers.values()))) == 4
    tested = replace(APNS, allow_test_tokens=True, test_url="https://127.0.0.1:1")
    assert PushProvider.APNS_TEST in make_providers(config(apns=tested), tmp_path)
    off = config(webpush=WebPushOptions(enabled=False))
    assert make_providers(off, tmp_path).keys() == NULL


@pytest.fixture
def webpush_configs(monkeypatch: pytest.MonkeyPatch) -> list[WebPushConfig]:
    """What each Web Push provider is made from."""
    configs: list[WebPushConfig] = []

    def make(config: WebPushConfig) -> WebPushProvider:
        configs.append(config)
        return WebPushProvider(config)

    monkeypatch.setattr("heliograph.ntf.providers.WebPushProvider", make)
    return configs


def test_hosts_that_clients_chose_have_a_thread_of_their_own(
    tmp_path: Path, webpush_configs: list[WebPushConfig]
) -> None:
    create_vapid_key(tmp_path)
    make_providers(config(), tmp_path)
    [made] = webpush_configs
    assert made.http.thread != HttpSettings().thread


def test_the_http_client_is_chosen(
    tmp_path: Path, webpush_configs: list[WebPushConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    create_vapid_key(tmp_path)
    chosen = replace(config(), pushes=DeliveryOptions(http_client="h2"))
    make_providers(chosen, tmp_path)
    [made] = webpush_configs
    assert isinstance(connections_to(made.http), H2Connections)
    monkeypatch.setattr("heliograph.ntf.providers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="h2 is missing"):
        make_providers(chosen, tmp_path)


def test_all_problems_at_once_and_no_secrets(tmp_path: Path) -> None:
    for name in ("k.p8", "account.json", "ca.pem"):
        (tmp_path / name).write_text("hunter2")
    broken = config(
        apns=replace(APNS, ca_file="ca.pem"),
        fcm=FcmOptions(service_account_file="account.json"),
        webpush=WebPushOptions(vapid_key_file="absent"),
    )
    with pytest.raises(ConfigError) as error:
        make_providers(broken, tmp_path)
    text = str(error.value)
    assert len(error.value.problems) == 3
    for key in ("[push.apns] ca_file", "[push.fcm] service_account_file", "vapid_key_file"):
        assert key in text
    assert "hunter2" not in text
    with pytest.raises(ConfigError, match=r"\[push.apns\] key_file"):
        make_providers(config(apns=APNS), tmp_path)


def test_vapid_key_is_made_once(tmp_path: Path) -> None:
    create_vapid_key(tmp_path)
    first = load_vapid(NtfConfig(), tmp_path).public_key
    create_vapid_key(tmp_path)
    assert load_vapid(NtfConfig(), tmp_path).public_key == first
    assert (tmp_path / "vapid.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "vapid.key").write_text("x")
    with pytest.raises(ConfigError, match="vapid_key_file"):
        load_vapid(NtfConfig(), tmp_path)


def test_the_proxy_of_all_providers(tmp_path: Path, webpush_configs: list[WebPushConfig]) -> None:
    create_vapid_key(tmp_path)
    chosen = replace(config(), pushes=DeliveryOptions(proxy="socks5://127.0.0.1:9050"))
    make_providers(chosen, tmp_path)
    [made] = webpush_configs
    assert made.http.proxy == "socks5://127.0.0.1:9050"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:9050", "http://proxy", "ftp://a:1", "http://a:1/path", "http://a:99999"]
)
def test_a_proxy_that_is_none(url: str) -> None:
    assert [key for key, _ in DeliveryOptions(proxy=url).check()] == ["proxy"]
    assert list(DeliveryOptions(proxy="http://u:p@[::1]:3128").check()) == []
    assert list(DeliveryOptions(proxy="http://a:1", http_client="h2").check()) == [
        ("proxy", 'needs http_client = "wreq"')
    ]


def test_other_apps(tmp_path: Path) -> None:
    for name in ("k.p8", "fork.p8"):
        (tmp_path / name).write_bytes(generate_vapid_key())
    chosen = replace(APNS, other_apps=("fork.p8 K T org.example.fork",))
    assert PushProvider.APNS_PROD in make_providers(config(apns=chosen), tmp_path)
    (tmp_path / "fork.p8").write_text("no key")
    with pytest.raises(ConfigError, match=r"other_apps: .*fork.p8"):
        make_providers(config(apns=chosen), tmp_path)
    (tmp_path / "fork.p8").unlink()
    with pytest.raises(ConfigError, match=r"other_apps: .*fork.p8: cannot be read"):
        make_providers(config(apns=chosen), tmp_path)
    for wrong in (replace(APNS, other_apps=("fork.p8 K",)), ApnsOptions(other_apps=("a b c d",))):
        assert [key for key, _ in wrong.check()] == ["other_apps"]
