"""Builds the wheel and the sdist: no duplicates, works where it is installed, and says what it is."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.nginx.gateway_harness import NginxGateway
from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer

REPOSITORY = "https://github.com/headgate/headgate"
BOOK = {"rules": [{"name": "all", "key": "address", "limit": "2/hour"}]}


def build(source: Path, target: Path, kind: str) -> Path:
    """Builds a wheel or an sdist of the source tree."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    (path,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith("/METADATA")]
        return Parser().parsestr(packed.read(name).decode())


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel in it and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    return python


def headgate(python: Path, *words: str) -> str:
    """Runs a command of the installed headgate; what it prints."""
    line = [str(python.parent / "python"), "-m", "headgate", *words]
    return subprocess.run(line, cwd=python.parent, env={}, check=True, capture_output=True, text=True).stdout


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def test_the_wheel_has_no_flaw(wheel: Path) -> None:
    # W009: the pytest plugin is a module beside the package.
    words = [sys.executable, "-m", "check_wheel_contents", "--no-config", "--ignore", "W009", str(wheel)]
    checked = subprocess.run(words, check=False, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, f"{wheel}: OK\n")
    with zipfile.ZipFile(wheel) as packed:
        assert len(packed.namelist()) == len(set(packed.namelist()))


def test_an_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build(ROOT, tmp_path, "sdist")
    with tarfile.open(sdist) as packed:
        names = packed.getnames()
        assert len(names) == len(set(names))
        if hasattr(tarfile, "data_filter"):  # Debian's Python 3.11 is older
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(tmp_path)
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert contents(build(source, tmp_path / "again", "wheel")) == contents(wheel)
    for room in ("src/headgate/lua/algorithms", "nginx/lib/resty/headgate/algorithms"):
        assert {path.name for path in (source / room).iterdir()} == {path.name for path in (ROOT / room).iterdir()}


def test_an_installed_headgate_knows_its_scripts(python: Path) -> None:
    listed = headgate(python, "lua", "list")
    here = [sys.executable, "-m", "headgate", "lua", "list"]
    assert listed == subprocess.run(here, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("copied", [False, True], ids=["path", "copy"])
def test_nginx_runs_the_installed_gate(
    copied: bool, python: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    if copied:
        headgate(python, "lua", "copy", str(tmp_path / "lib"))
    with NginxGateway(BOOK, redis_server.url) as gate:
        gate.lib = tmp_path / "lib" if copied else Path(headgate(python, "lua", "path").strip()).parent
        assert gate.lib.is_dir()
        gate.restart()
        assert [gate.get("/").status for _ in range(3)] == [200, 200, 429]


def test_the_metadata_says_what_it_is(metadata: Message) -> None:
    assert metadata["Summary"] == (
        "Exact rate limiting for Python, Redis/Valkey, nginx and Envoy from one rulebook."
    )
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert all(url.startswith(REPOSITORY) for url in urls.values())
    extras = {"aiohttp", "client", "django", "drf", "envoy", "fastapi", "fastmcp", "flask", "grpc", "mcp"}
    extras |= {
        "celery",
        "dramatiq",
        "httpx",
        "opentelemetry",
        "prometheus",
        "redis",
        "requests",
        "service",
        "yaml",
        "zstd",
    }
    assert set(metadata.get_all("Provides-Extra", [])) == extras


def test_grpc_comes_with_the_extras_envoy_and_grpc_only(metadata: Message) -> None:
    required = metadata.get_all("Requires-Dist", [])
    assert [line.partition(";")[2] for line in required if line.startswith(("grpcio", "hpack", "protobuf"))] == [
        *[" extra == 'envoy'"] * 2,
        " extra == 'grpc'",
    ]
    assert not [
        line for line in required if line.startswith("uvloop") and "platform_system != 'Windows'" not in line
    ]


def test_the_decision_on_the_service_names_the_versions_that_are_required(metadata: Message) -> None:
    (page,) = (ROOT / "docs" / "decisions").glob("0011-*.md")
    named = set(re.findall(r"`(granian[^`\w][^`]*)`", page.read_text()))
    assert {line.partition(";")[0] for line in metadata.get_all("Requires-Dist", [])} & named == named
    assert {re.split(r"\W", name)[0] for name in named} == {"granian"}


def test_the_readme_names_every_extra(metadata: Message) -> None:
    for page in ("README.md", "README.zh-CN.md"):
        rows = re.findall(r"^\| `headgate\[(\w+)\]` \|", (ROOT / page).read_text("utf-8"), re.M)
        assert set(rows) == set(metadata.get_all("Provides-Extra", []))


def test_classifiers_name_only_pythons_that_test_all_runs(metadata: Message) -> None:
    versions = re.findall(r"Python :: (3\.\d+)$", "\n".join(metadata.get_all("Classifier", [])), re.M)
    (listed,) = re.findall(r"^for minor in (.*); do$", (ROOT / "scripts" / "test-all").read_text(), re.M)
    assert versions
    assert set(versions) <= set(listed.split())


def test_links_of_the_description_work_without_the_repository(metadata: Message) -> None:
    text = str(metadata.get_payload())
    assert metadata["Description-Content-Type"] == "text/markdown"
    anchors = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in headings(text)}
    links = re.findall(r"\]\(([^)]+)\)|^\[[^]]+\]:\s*(\S+)|(?:href|src)=\"([^\"]+)\"", text, re.M)
    assert links
    for link in ("".join(each) for each in links):
        if link.startswith(f"{REPOSITORY}/blob/main/"):
            path = link.removeprefix(f"{REPOSITORY}/blob/main/").partition("#")[0]
            assert (ROOT / path).exists(), link
        elif link.startswith("#"):
            assert link[1:] in anchors, link
        else:
            assert link.startswith("https://"), link


def headings(text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return re.findall(r"^#+ (.*)$", prose, re.M)
