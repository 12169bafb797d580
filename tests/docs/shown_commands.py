"""Runs the commands that documentation pages show, and compares what they print with what is shown.

    $ headgate rules validate rules.yaml        a command: run in a folder of its own, on a real Redis
    rules.yaml: 2 rules                         what it must print, on stdout and stderr
    $ headgate rules test x.yaml     # exit code 3

A line that is `…` stands for any lines, and `…` in a line for anything. Redis is on a clock that stands still and
that scenes turn, so times are exact. A command without output shown must only end as it says.

`python -m tests.docs.shown_commands` prints what differs; with `--write` it puts what was printed into the pages.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import headgate.cli
from headgate.gateway import lua_library
from tests.docs.shown_command_setup import SCENES, PageSetup
from tests.repo_rules.repository import ROOT
from tests.servers import DrivenClock, RedisServer

BEGIN_US = 1_794_800_944_000_000  # 2026-11-16 03:49:04 UTC
SHOWN_URL = "redis://localhost:6379/0"
SHOWN_LIB = "/usr/lib/python3/dist-packages/headgate/nginx/lib"
FOLDERS = ("/usr/local/share/headgate", "/etc/nginx")  # of the reader's machine
GAP = "…"

_remark = re.compile(r"\s+# (exit code (\d+))?.*$")
_nginx_time = re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d (\[\w+\]) \d+#\d+:")


class ShownCommand(NamedTuple):
    """A command of a page: its line there, the text, the exit code, and the lines of output behind it."""

    line: int
    command: str
    code: int
    output: list[str]


def shown_commands(page: Path) -> list[ShownCommand]:
    """The commands of a page, in their order."""
    commands: list[ShownCommand] = []
    inside = False
    for number, line in enumerate(page.read_text("utf-8").splitlines()):
        text = line.removeprefix("    ")
        if not line.startswith("    ") and line:
            inside = False
        elif line.startswith("    $ "):
            remark = _remark.search(text)
            code = int(remark[2] or 0) if remark else 0
            command = text[2 : remark.start()] if remark else text[2:]
            commands.append(ShownCommand(number, command, code, []))
            inside = True
        elif inside:
            commands[-1].output.append(text)
    for each in commands:
        while each.output and not each.output[-1]:
            each.output.pop()
    return [each for each in commands if each.command.startswith("headgate ")]


def pages_with_commands() -> list[Path]:
    """Every page that shows a command."""
    every = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "nginx").glob("*.md")]
    return sorted(page for page in every if shown_commands(page))


@dataclass
class PageConsole:
    """A folder with a scene's files in it, and a Redis whose clock stands still."""

    scene: PageSetup
    server: RedisServer
    folder: Path
    environment: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.server.call("FLUSHALL")
        assert self.server.driven is not None
        self.server.driven.set_us(BEGIN_US)
        for name, text in self.scene.files.items():
            (self.folder / name).write_text(text, "utf-8")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        self.environment = clean | {
            "HEADGATE_ENGINE": self.server.url,
            "USER": "ann",
            "NO_COLOR": "1",
            "COLUMNS": "100",
        }

    def play(self, command: str) -> tuple[int, list[str]]:
        """Runs what the scene has before a command, then the command: its exit code, and the lines it printed."""
        for step in self.scene.before.get(command, ()):
            if isinstance(step, float):
                assert self.server.driven is not None
                self.server.driven.advance_us(round(step * 1_000_000))
            elif callable(step):
                step(self.server.url)
            else:
                code, lines = self._run(step)
                assert code == 0, lines
        return self._run(command)

    def _run(self, command: str) -> tuple[int, list[str]]:
        words = shlex.split(command.replace(SHOWN_URL, self.server.url))
        target = words[words.index(">") + 1] if ">" in words else None
        words = words[1 : words.index(">")] if target else words[1:]
        words = [str(self.folder / "copied") if word in FOLDERS else word for word in words]
        out = StringIO()
        err = StringIO() if target else out
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(self.environment)
        try:
            with chdir(self.folder), redirect_stdout(out), redirect_stderr(err):
                code = headgate.cli.main(words)
        finally:
            os.environ.clear()
            os.environ.update(before)
        if target:
            (self.folder / target).write_text(out.getvalue(), "utf-8")
        return code, [self._as_shown(line) for line in err.getvalue().splitlines()]

    def _as_shown(self, line: str) -> str:
        line = line.replace(self.server.url, SHOWN_URL).replace(str(lua_library.folder()), SHOWN_LIB)
        line = line.replace(str(self.folder / "copied"), FOLDERS[0]).replace(str(self.folder), FOLDERS[1])
        return line.rstrip()


def matches(output: Sequence[str], printed: Sequence[str]) -> bool:
    """Returns whether these lines were printed, as far as they are shown. nginx's time and process number may be
    any.
    """
    parts = []
    for line in map(_timeless, output):
        if line.strip() == GAP:
            parts.append(r"(?:.*\n)*")
        else:
            parts.append(re.escape(line.rstrip()).replace(re.escape(GAP), ".*") + r"\n")
    return re.fullmatch("".join(parts), "".join(f"{_timeless(line)}\n" for line in printed)) is not None


def _timeless(line: str) -> str:
    return _nginx_time.sub(r"TIME \1", line)


def run_page(page: Path, server: RedisServer) -> list[tuple[ShownCommand, int, list[str]]]:
    """Every command of a page with its exit code and what it printed."""
    name = str(page.relative_to(ROOT))
    with tempfile.TemporaryDirectory(prefix="headgate-console-") as folder:
        console = PageConsole(SCENES[name], server, Path(folder).resolve())
        return [
            (each, *console.play(each.command))
            for each in shown_commands(page)
            if each.command not in console.scene.skipped
        ]


def expected_output(output: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Returns what a page should show: the whole output, or as much of its beginning and end as it shows now."""
    gaps = [index for index, line in enumerate(output) if line.strip() == GAP]
    if not gaps:
        return list(printed)
    first, last = gaps[0], len(output) - gaps[-1] - 1
    return [*printed[:first], *output[gaps[0] : gaps[-1] + 1], *(printed[-last:] if last else [])]


def main(words: Sequence[str]) -> int:
    differ = 0
    with RedisServer("redis", driven=DrivenClock(BEGIN_US)) as server:
        for page in pages_with_commands():
            lines = page.read_text("utf-8").splitlines()
            for each, code, printed in reversed(run_page(page, server)):
                if code == each.code and (not each.output or matches(each.output, printed)):
                    continue
                differ += 1
                print(f"{page.relative_to(ROOT)}:{each.line + 1}: {each.command}  (exit code {code})")  # noqa: T201
                print("\n".join(f"    {line}" for line in printed))  # noqa: T201
                if "--write" in words and each.output:
                    begin = each.line + 1
                    new = [f"    {line}".rstrip() for line in expected_output(each.output, printed)]
                    lines[begin : begin + len(each.output)] = new
            if "--write" in words:
                page.write_text("\n".join(lines) + "\n", "utf-8")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
