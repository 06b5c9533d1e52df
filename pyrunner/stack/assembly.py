"""Kafka, Connect and the connector as folders of jars, assembled by Maven once a version."""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pyrunner.errors import PyrunnerError
from pyrunner.stack.files import debezium_root, read

__all__ = ["AssemblyError", "assemble", "default_caches", "find_java"]

OLDEST_JAVA: Final = 17
_PATIENCE: Final = 900
# without these there is nothing to start
_ESSENTIAL: Final = (
    "kafka/kafka_2.13-*.jar",
    "kafka/connect-runtime-*.jar",
    "plugins/*/debezium-connector-*.jar",
    "plugins/*/outbox-to-kafka-*.jar",
)
# of our part of the connector, in debezium/
_SOURCE: Final = "src"


class AssemblyError(PyrunnerError):
    """Java or Maven is missing, or Maven could not do it."""


def find_java() -> str:
    """The program `java`: JAVA_HOME's, or the first on PATH.

    Raises:
        AssemblyError: there is none, or it is too old.
    """
    remedy = (
        f"Install Java {OLDEST_JAVA} or newer (Debian, Ubuntu: apt-get install default-jre-headless), "
        "or name one by JAVA_HOME."
    )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = java or shutil.which("java")
    if java is None:
        raise AssemblyError("Kafka needs Java, and there is no java on PATH.", hint=remedy)
    try:
        command = [java, "-XX:-UsePerfData", "-version"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        raise AssemblyError(f"Kafka needs Java, and {java} does not run.", hint=remedy) from None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if found is None or int(found.group(1)) < OLDEST_JAVA:
        version = f"version {found.group(1)}" if found else "of an unknown version"
        raise AssemblyError(f"Kafka needs Java {OLDEST_JAVA} or newer, and {java} is {version}.", hint=remedy)
    return java


def default_caches() -> list[Path]:
    """Where assemblies are kept: in .cache of a checkout, then in the user's cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    caches = [(base if base.is_absolute() else Path.home() / ".cache") / "pyrunner"]
    project = debezium_root().parent
    if (project / "pyproject.toml").is_file():
        caches.insert(0, project / ".cache")
    return caches


def assemble(
    cache: Path | None = None, *, pom: str | None = None, on_progress: Callable[[str], None] = lambda _: None
) -> Path:
    """The folder with `kafka/*.jar` and `plugins/`; made when it is not there, else no network is needed.

    Args:
        cache: where it is kept; by default the first of `default_caches()` that has it, or may be written to.
        pom: Maven's project; by default debezium/pom.xml. Each text, with debezium/src beside it, has an
            assembly of its own.
        on_progress: is told what takes long.

    Raises:
        AssemblyError: there is no Maven, or it failed.
    """
    pom = read("pom.xml") if pom is None else pom
    name = f"kafka-{_fingerprint(pom)}"
    caches = default_caches() if cache is None else [cache]
    for place in caches:
        if (place / name).is_dir():
            return place / name
    mvn = shutil.which("mvn")
    if mvn is None:
        raise AssemblyError(
            "Kafka and the connector come from Maven, and there is no mvn on PATH.",
            hint="Install Maven (Debian, Ubuntu: apt-get install maven); it is needed once a version.",
        )
    cache = next((place for place in caches[:-1] if _is_writable(place)), caches[-1])
    home = cache / name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / "kafka.lock"):
            if not home.is_dir():
                on_progress("Maven fetches Kafka and the connector, once (60 MB).")
                _build(mvn, pom, home)
    except OSError as error:
        raise AssemblyError(
            f"Kafka cannot be put into {cache}: {error.strerror}.",
            hint="Check the space and the permissions there.",
        ) from None
    return home


def _fingerprint(pom: str) -> str:
    digest = hashlib.sha256(pom.encode())
    source = debezium_root() / _SOURCE
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(f"\0{path.relative_to(source).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _is_writable(folder: Path) -> bool:
    return os.access(folder if folder.exists() else folder.parent, os.W_OK)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _build(mvn: str, pom: str, home: Path) -> None:
    # left by one that was killed: we hold the lock
    for left in home.parent.glob("kafka-new-*"):
        shutil.rmtree(left, ignore_errors=True)
    log = home.with_suffix(".log")
    with tempfile.TemporaryDirectory(prefix="kafka-new-", dir=home.parent) as name:
        new = Path(name)
        made = new / "dist"
        (new / "pom.xml").write_text(pom, "utf-8")
        shutil.copytree(debezium_root() / _SOURCE, new / _SOURCE)
        with log.open("w") as output:
            try:
                code = subprocess.run(
                    [
                        mvn, "-B", "-ntp", "-Dstyle.color=never", "--strict-checksums", f"-Ddist.dir={made}",
                        "package",
                    ],
                    cwd=new, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    timeout=_PATIENCE, check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                raise AssemblyError(
                    f"Maven did not fetch Kafka within {_PATIENCE} s.",
                    hint=f"Check the network and try again; what Maven said stands in {log}.",
                ) from None
        missing = [pattern for pattern in _ESSENTIAL if not any(made.glob(pattern))]
        if code or missing:
            raise AssemblyError(
                f"Maven could not assemble Kafka: {_reason(log.read_text(errors='replace'), missing)}.",
                hint=f"Check the network and Maven's settings; what Maven said stands in {log}.",
            )
        # whatever the umask: another user of the checkout may run it
        for path in (made, *made.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        made.rename(home)
    log.unlink()


def _reason(output: str, missing: list[str]) -> str:
    for line in output.splitlines():
        text = re.sub(r"\x1b\[[0-9;]*m", "", line)
        if text.startswith("[ERROR]") and (said := text.removeprefix("[ERROR]").strip()):
            return said.rstrip(".")
    return f"it left out {', '.join(missing)}" if missing else "it gave no reason"
