"""Finds Redis and Valkey in compose files, .env files and settings, and nginx in its configuration.

Files are read line by line, as text: nothing but the few lines that matter needs to be understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from headgate.cli.project.application import Place
from headgate.cli.project.files import ProjectFiles, read_text

_image = re.compile(
    r"(\s+)(?:- )?image:\s*[\"']?(?:[\w.:-]+/)*(redis|valkey)(?:-stack(?:-server)?)?"
    r"(?:[:@][^\s\"']*)?[\"']?\s*(?:#.*)?"
)
_port = re.compile(r"\s+-\s*[\"']?(?:[\d.]+:)?(\d+):6379(?:/tcp)?[\"']?\s*(?:#.*)?")
_name = re.compile(r"(\s*)([\w.-]+):\s*(?:#.*)?")
_build = re.compile(r"\s+build:.*")
_env_line = re.compile(r"(?:export\s+)?(\w+)\s*=\s*[\"']?((?:rediss?|valkeys?)://[^\s\"']+)[\"']?\s*(?:#.*)?")
_directive = r"(?:^|[{;}])\s*"  # several may stand on one line
_pass = re.compile(_directive + r"(?:proxy|uwsgi|fastcgi|grpc)_pass\s+([^;]+);")
_limit = re.compile(_directive + r"limit_(?:req|conn)(?:_zone)?\s")
_block = re.compile(r"\s*(?:http|server|location|upstream)\b.*\{.*")
_forwarded = re.compile(_directive + r"proxy_set_header\s+X-Forwarded-For\s", re.I | re.M)


class RedisAddress(NamedTuple):
    """The place of Redis or Valkey: its URL, and the environment variable that holds it, if there is one."""

    place: Place
    what: str
    url: str
    variable: str | None = None

    @property
    def shown_url(self) -> str:
        """The URL without a password, to print."""
        return re.sub(r"//[^@/]*@", "//***@", self.url)

    @property
    def has_password(self) -> bool:
        return "@" in urlsplit(self.url).netloc


class NginxFile(NamedTuple):
    """A configuration of nginx, and where it passes requests on to."""

    place: Place
    backend: str | None
    limits: Place | None  # the first limit_req or limit_conn
    http_line: int | None
    forwards_address: bool


def find_redis(folder: Path, files: ProjectFiles, constants: Sequence[tuple[Place, str]]) -> list[RedisAddress]:
    """Finds servers; those in environment variables come first, then those of compose, then constants."""
    found = [address for path in files.env for address in _in_env(path, path.relative_to(folder).as_posix())]
    found.sort(key=lambda address: "REDIS" not in (address.variable or ""))
    for path in files.compose:
        found += _in_compose(path, path.relative_to(folder).as_posix())
    return [*found, *(RedisAddress(place, "a URL in the code", url) for place, url in constants)]


def _in_env(path: Path, file: str) -> Iterator[RedisAddress]:
    for number, line in enumerate((read_text(path) or "").splitlines(), 1):
        if match := _env_line.fullmatch(line.strip()):
            yield RedisAddress(Place(file, number), f"the variable {match[1]}", match[2], match[1])


def _in_compose(path: Path, file: str) -> Iterator[RedisAddress]:
    lines = (read_text(path) or "").splitlines()
    is_built = any(_build.fullmatch(line) for line in lines)  # the application runs among the services
    for index, line in enumerate(lines):
        if (match := _image.fullmatch(line)) is None:
            continue
        service, begin, end = _service(lines, index, len(match[1]))
        published = next((port[1] for each in lines[begin:end] if (port := _port.fullmatch(each))), None)
        host = f"localhost:{published}" if published and not is_built else f"{service}:6379"
        product = "Valkey" if match[2] == "valkey" else "Redis"
        yield RedisAddress(Place(file, index + 1), f'{product}, the service "{service}"', f"redis://{host}/0")


def _service(lines: Sequence[str], index: int, indent: int) -> tuple[str, int, int]:
    """Returns the service that a line belongs to, and the lines of its block."""
    begin = index
    while begin > 0:
        begin -= 1
        if (match := _name.fullmatch(lines[begin])) and len(match[1]) < indent:
            end = next((n for n in range(begin + 1, len(lines)) if _begins_at_most(lines[n], len(match[1]))), None)
            return match[2], begin, len(lines) if end is None else end
    return "redis", 0, len(lines)


def _begins_at_most(line: str, indent: int) -> bool:
    return bool(line.strip()) and len(line) - len(line.lstrip()) <= indent


def find_nginx(folder: Path, paths: Sequence[Path]) -> list[NginxFile]:
    """Finds configurations of nginx among files that end in .conf."""
    return [
        found
        for path in paths
        if (source := read_text(path)) is not None
        and (found := _nginx_file(path.relative_to(folder).as_posix(), source)) is not None
    ]


def _nginx_file(file: str, source: str) -> NginxFile | None:
    lines = [line.partition("#")[0] for line in source.splitlines()]
    passes = [(number, match[1].strip()) for number, line in enumerate(lines, 1) if (match := _pass.search(line))]
    blocks = [number for number, line in enumerate(lines, 1) if _block.fullmatch(line)]
    if not blocks or (not passes and not file.endswith("nginx.conf")):
        return None
    limits = next((number for number, line in enumerate(lines, 1) if _limit.search(line)), None)
    http = next((number for number in blocks if re.match(r"\s*http\b", lines[number - 1])), None)
    line, backend = passes[0] if passes else (blocks[0], None)
    return NginxFile(
        Place(file, line),
        backend,
        Place(file, limits) if limits else None,
        http,
        bool(_forwarded.search("\n".join(lines))),
    )
