"""Read the reference's `ntf-server.ini` into our configuration, and report what is left out.

Pure: text in, values and remarks out.
"""

import configparser
from collections.abc import Callable
from dataclasses import dataclass, field

from heliograph.ntf.config import NtfConfig, NtfListen
from heliograph.runtime.config.options import build

__all__ = ["IniError", "Translated", "translate"]

TEAM_ID = "5NN7GUYB6T"
TOPIC = "chat.simplex.app"
"""Defaults of the reference."""

STATS_FILE = "ntf-server-stats.daily.log"
_PLACEHOLDER = "<hostnames>"

KeyPath = tuple[str, str]


class IniError(ValueError):
    """The reference could not read the file."""


@dataclass(slots=True)
class Translated:
    """Values by the keys of our configuration, and remarks on settings without a counterpart."""

    values: dict[tuple[str, ...], object] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def config(self) -> NtfConfig:
        made: NtfConfig = build(NtfConfig, self.values)
        return made


def translate(text: str) -> Translated:
    """Parse the file. Raises `IniError`."""
    parser = configparser.ConfigParser(
        interpolation=None, strict=False, comment_prefixes=("#", ";"), empty_lines_in_values=False
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as exc:
        raise IniError(f"not an INI file: {str(exc).splitlines()[0]}") from exc
    result = Translated()
    for section in parser.sections():
        for name, value in parser.items(section):
            handler = _SETTINGS.get((section, name))
            if handler is None:
                result.remarks.append(f"[{section}] {name}: not known here, left out")
            else:
                handler(result, f"[{section}] {name}", value.strip())
    _finish(result, {(s, n): v.strip() for s in parser.sections() for n, v in parser.items(s)})
    return result


def _finish(result: Translated, given: dict[KeyPath, str]) -> None:
    """Convert what depends on several settings or is not in the reference's file."""
    values = result.values
    host = str(values.get(("listen", "host"), ""))
    if not host:
        result.remarks.append("[TRANSPORT] host: not set there: set [listen] host")
    try:
        values[("network", "allow_private")] = bool(host) and NtfListen(host).is_private
    except ValueError:
        raise IniError("[TRANSPORT] host: not a host name or address") from None
    if given.get(("INACTIVE_CLIENTS", "disconnect"), "off") != "on":
        values[("clients", "inactive_after_seconds")] = 0.0
    values[("push", "apns", "team_id")] = TEAM_ID
    values[("push", "apns", "topic")] = TOPIC
    result.remarks.append(
        "APNs: the reference has its key in the environment: set [push.apns] key_file to what"
        " APNS_KEY_FILE was, and key_id to what APNS_KEY_ID was; team_id and topic are those it has"
        " built in"
    )


def _switch(where: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise IniError(f"{where}: must be on or off")
    return value == "on"


def _number(where: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise IniError(f"{where}: must be a whole number")
    return int(value)


def _text(*path: str) -> "_Handler":
    def handle(result: Translated, where: str, value: str) -> None:
        result.values[path] = value

    return handle


def _on_off(*path: str) -> "_Handler":
    def handle(result: Translated, where: str, value: str) -> None:
        result.values[path] = _switch(where, value)

    return handle


def _seconds(*path: str) -> "_Handler":
    def handle(result: Translated, where: str, value: str) -> None:
        result.values[path] = float(_number(where, value))

    return handle


def _remark(text: str, unless: str | None = None) -> "_Handler":
    def handle(result: Translated, where: str, value: str) -> None:
        if value != unless:
            result.remarks.append(f"{where}: {text}")

    return handle


def _ignore(result: Translated, where: str, value: str) -> None:
    """Ignore a setting that has no meaning here."""


def _host(result: Translated, where: str, value: str) -> None:
    if value and value != _PLACEHOLDER:
        result.values[("listen", "host")] = value
        # There it is only printed; here an address would be listened on.
        result.values[("listen", "bind")] = "*"


def _port(result: Translated, where: str, value: str) -> None:
    first, *others = (_number(where, part.strip()) for part in value.split(","))
    result.values[("listen", "port")] = first
    if others:
        text = ", ".join(map(str, others))
        result.remarks.append(f"{where}: one port is listened on: {first}, and not {text}")


def _log_stats(result: Translated, where: str, value: str) -> None:
    if _switch(where, value):
        result.values[("stats", "log_file")] = STATS_FILE


def _prometheus(result: Translated, where: str, value: str) -> None:
    _number(where, value)
    result.values[("metrics", "port")] = 9100
    result.remarks.append(
        f"{where}: metrics are now served over HTTP, not written to a file: [metrics] port"
    )


def _control_port(result: Translated, where: str, value: str) -> None:
    result.values[("control", "port")] = _number(where, value)


def _socks_proxy(result: Translated, where: str, value: str) -> None:
    host, _, port = value.rpartition(":") if ":" in value else (value, "", "")
    result.values[("network", "socks_proxy")] = f"{host or '127.0.0.1'}:{port or 9050}"


def _socks_mode(result: Translated, where: str, value: str) -> None:
    if value not in ("onion", "always"):
        raise IniError(f"{where}: must be onion or always")
    result.values[("network", "socks_mode")] = value


def _own_domains(result: Translated, where: str, value: str) -> None:
    result.values[("subscriptions", "own_domains")] = tuple(value.split())


_Handler = Callable[[Translated, str, str], None]

_DATABASE = (
    "Heliograph keeps its own tables: export the reference's store (`ntf-server database export`),"
    " then `heliograph ntf import`; set [store] url for PostgreSQL"
)
_CHOSEN = "onion hosts are preferred if there is a proxy, others if not"

_SETTINGS: dict[KeyPath, _Handler] = {
    ("STORE_LOG", "enable"): _remark(
        "the store is always a database; `heliograph ntf export` writes a store log", unless="off"
    ),
    ("STORE_LOG", "db_connection"): _remark(_DATABASE),
    ("STORE_LOG", "db_schema"): _ignore,
    ("STORE_LOG", "db_pool_size"): _ignore,
    ("STORE_LOG", "db_deleted_ttl"): _remark("what is deleted is not kept"),
    ("STORE_LOG", "log_stats"): _log_stats,
    ("STORE_LOG", "prometheus_interval"): _prometheus,
    ("AUTH", "control_port_admin_password"): _text("control", "admin_password"),
    ("AUTH", "control_port_user_password"): _text("control", "user_password"),
    ("TRANSPORT", "host"): _host,
    ("TRANSPORT", "port"): _port,
    ("TRANSPORT", "log_tls_errors"): _remark('set [log] level = "debug" for them', unless="off"),
    ("TRANSPORT", "websockets"): _remark("there are no WebSockets", unless="off"),
    ("TRANSPORT", "control_port"): _control_port,
    ("SUBSCRIBER", "host_mode"): _remark(_CHOSEN, unless="public"),
    ("SUBSCRIBER", "required_host_mode"): _remark(_CHOSEN, unless="off"),
    ("SUBSCRIBER", "socks_proxy"): _socks_proxy,
    ("SUBSCRIBER", "socks_mode"): _socks_mode,
    ("SUBSCRIBER", "own_server_domains"): _own_domains,
    ("SUBSCRIBER", "use_service_credentials"): _on_off("subscriptions", "use_service_credentials"),
    ("INACTIVE_CLIENTS", "disconnect"): _ignore,
    ("INACTIVE_CLIENTS", "ttl"): _seconds("clients", "inactive_after_seconds"),
    ("INACTIVE_CLIENTS", "check_interval"): _seconds("clients", "check_interval_seconds"),
}
