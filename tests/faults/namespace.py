"""A machine of its own: a network namespace with a link that can be cut. Needs root, and `ip`."""

import os
import shutil
import subprocess


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True)


class Namespace:
    """Its processes reach 127.0.0.1 of this machine, over the link alone."""

    def __init__(self) -> None:
        """Raise `OSError` or `CalledProcessError` if there can be none."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise PermissionError("a network namespace needs root, and the command ip")
        self.name = f"hg{os.getpid()}"
        self._inner, outer = f"{self.name}b", f"{self.name}a"
        block = os.getpid() % 16_000
        near, far = (f"10.231.{block // 64}.{block % 64 * 4 + host}" for host in (1, 2))
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", outer, "type", "veth", "peer", self._inner, "netns", self.name)
            _ip("addr", "add", f"{near}/30", "dev", outer)
            _ip("link", "set", outer, "up")
            self._inside("addr", "add", f"{far}/30", "dev", self._inner)
            self._inside("link", "set", "lo", "up")
            self._inside("addr", "del", "127.0.0.1/8", "dev", "lo")
            self._set(f"conf.{self._inner}.route_localnet")
            self._set("ip_nonlocal_bind")
            self._route = ("127.0.0.1", "via", near, "dev", self._inner, "src", far)
            subprocess.run(("sysctl", "-qw", f"net.ipv4.conf.{outer}.route_localnet=1"), check=True)
            self.join()
        except BaseException:
            self.remove()
            raise

    @property
    def command(self) -> tuple[str, ...]:
        """The prefix of a command that runs there."""
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        """Take the link away: nothing is reset, packets are lost."""
        self._inside("link", "set", self._inner, "down")

    def join(self) -> None:
        self._inside("link", "set", self._inner, "up")
        self._inside("route", "replace", *self._route)

    def remove(self) -> None:
        _ip("netns", "del", self.name)

    def _inside(self, *arguments: str) -> None:
        _ip("-n", self.name, *arguments)

    def _set(self, setting: str) -> None:
        subprocess.run((*self.command, "sysctl", "-qw", f"net.ipv4.{setting}=1"), check=True)
