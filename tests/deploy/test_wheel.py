"""The wheel has every module, the page's files, and extras that fit together."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("wheel")
    command = ["pip", "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--wheel-dir", str(target), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [file] = target.glob("heliograph-*.whl")
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def test_every_file_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for file in (SOURCE / "heliograph").rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            assert file.relative_to(SOURCE).as_posix() in names


def test_all_is_every_extra(metadata: Message) -> None:
    extras = set(metadata.get_all("Provides-Extra") or ())
    assert extras == {"actions", "all", "h2", "journal", "pipeline", "postgresql", "sim"}
    requirements = [Requirement(text) for text in metadata.get_all("Requires-Dist") or ()]
    by_extra = {
        extra: {
            item.name
            for item in requirements
            if item.marker is not None and item.marker.evaluate({"extra": extra})
        }
        for extra in extras
    }
    assert "h2" in by_extra["sim"]
    assert "psycopg" in by_extra["postgresql"]
    assert "pyspark" in by_extra["pipeline"]
    assert "pyarrow" in by_extra["journal"]
    assert by_extra["all"] == set().union(*(by_extra[name] for name in extras - {"all"}))


@pytest.mark.parametrize(
    ("lock", "extra"),
    [
        ("runtime", "postgresql"),
        ("runtime", "journal"),
        ("pipeline", "pipeline"),
        ("build", None),
    ],
)
def test_lock_files_have_every_direct_dependency(lock: str, extra: str | None) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if extra is None:
        wanted = project["dependency-groups"]["build"]
    else:
        wanted = [
            *project["project"]["dependencies"],
            *project["project"]["optional-dependencies"][extra],
        ]
    lines = (ROOT / "requirements" / f"{lock}.lock").read_text().splitlines()
    pinned = {
        canonicalize_name(line.split("==")[0]): line.split("==")[1].split()[0]
        for line in lines
        if "==" in line and not line.startswith((" ", "#"))
    }
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(pinned[name]), name


def test_the_description_stands_alone(metadata: Message) -> None:
    """A package index has neither the repository's pictures nor its other pages."""
    text = str(metadata.get_payload())
    assert text.startswith("# Heliograph")
    assert "which commands it handles" in text, "links keep their words"
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)", text) == []
