"""Files as editors, deployments and Kubernetes change them: every change is seen, and no half of one is read."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.clock import ManualClock
from headgate.errors import InvalidRule
from headgate.rules.distribution.rulebook_version import MAX_BYTES, RulebookVersion
from headgate.rules.distribution.source import SETTLE_US, FileSource, PushedSource, RulebookText


class BusyClock(ManualClock):
    """A clock on which something happens while somebody sleeps; it stands still, because files have another."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        super().__init__(time.time_ns() // 1000)
        self.happens = list(happens)
        self.slept: list[int] = []

    def sleep_us(self, duration_us: int) -> None:
        self.slept.append(duration_us)
        if self.happens:
            self.happens.pop(0)()


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text("rules: []")
    return path


def in_place(path: Path) -> None:
    with path.open("r+") as file:
        file.write("rules: {}")


def truncated(path: Path) -> None:
    path.write_text("rules: {}")


def renamed(path: Path) -> None:
    beside = path.with_name("beside")
    beside.write_text("rules: {}")
    shutil.copystat(path, beside)
    beside.replace(path)


def removed_first(path: Path) -> None:
    path.unlink()
    path.write_text("rules: {}")


def dated_back(path: Path) -> None:
    was = path.stat()
    path.write_text("rules: {}")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.mark.parametrize("change", [in_place, truncated, renamed, removed_first, dated_back])
def test_every_way_of_writing_is_seen(book: Path, change: Callable[[Path], None]) -> None:
    source = FileSource(book)
    seen = source.signature()
    assert source.signature() == seen
    assert source.read().text == "rules: []"  # which takes long enough for another time
    change(book)
    assert source.signature() != seen
    assert source.read() == RulebookText("rules: {}", "yaml", str(book))


def test_a_link_that_is_turned_is_seen(tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap: rules.yaml -> ..data/rules.yaml, ..data -> ..1."""
    for folder, text in (("..1", "rules: []"), ("..2", "rules: {}")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rules.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "rules.yaml").symlink_to(Path("..data") / "rules.yaml")
    source = FileSource(tmp_path / "rules.yaml")
    seen = source.signature()
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    assert source.signature() != seen
    assert source.read().text == "rules: {}"


def test_a_file_that_is_being_written_is_read_when_it_holds_still(book: Path) -> None:
    clock = BusyClock(lambda: book.write_text("rules: [a"), lambda: book.write_text("rules: [a, b]"))
    assert FileSource(book, clock=clock).read().text == "rules: [a, b]"
    assert clock.slept == [SETTLE_US] * 3


def test_a_file_that_is_replaced_while_it_settles_is_read_anew(book: Path) -> None:
    assert FileSource(book, clock=BusyClock(lambda: renamed(book))).read().text == "rules: {}"


def test_a_file_that_changes_while_it_is_read_is_read_anew(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happens = [lambda: book.write_text("rules: [a, b]")]
    looked = os.fstat

    def fstat(file: int) -> os.stat_result:
        status = looked(file)
        if happens:
            happens.pop()()
        return status

    clock = BusyClock()
    source = FileSource(book, clock=clock)
    monkeypatch.setattr(os, "fstat", fstat)
    assert source.read().text == "rules: [a, b]"
    assert clock.slept == [SETTLE_US] * 2


def test_a_file_that_never_holds_still_is_not_read(book: Path) -> None:
    clock = BusyClock(*[lambda n=n: book.write_text(f"rules: [{'a' * n}]") for n in range(9)])
    with pytest.raises(OSError, match="changes all the time"):
        FileSource(book, clock=clock).read()


def test_an_old_file_is_read_at_once(book: Path) -> None:
    clock = BusyClock()
    clock.advance(60)
    assert FileSource(book, clock=clock).read().text == "rules: []"
    assert clock.slept == []


def test_a_half_written_file_is_never_read(tmp_path: Path) -> None:
    """A writer in pieces, faster than the settling time: only whole texts come out, whenever it is read."""
    path = tmp_path / "rules.yaml"
    path.write_text("begin 0 end")
    pieces = [piece for n in range(1, 9) for piece in ("begin ", f"{n} ", "end")]

    def write() -> None:
        """Writes what a writer writes while the source sleeps: at least one piece, and sometimes a whole text."""
        for _ in range(1 + len(pieces) % 5):
            if pieces:
                piece = pieces.pop(0)
                with path.open("w" if piece == "begin " else "a") as file:
                    file.write(piece)
                # Timestamps of files are coarse, and nobody slept: each write gets its own, a millisecond later.
                now_ns = time.time_ns() - len(pieces) * 1_000_000
                os.utime(path, ns=(now_ns, now_ns))

    read = set()
    while pieces:
        try:
            read.add(FileSource(path, clock=BusyClock(*[write] * 40)).read().text)
        except (OSError, InvalidRule) as error:
            assert "changes all the time" in str(error)  # noqa: PT017
    assert FileSource(path).read().text == "begin 8 end"
    assert read <= {f"begin {n} end" for n in range(9)}


def test_an_editor_that_removes_first_is_waited_for(book: Path) -> None:
    book.unlink()
    source = FileSource(book, clock=BusyClock(lambda: book.write_text("rules: []")))
    assert source.signature() == source.signature()
    book.unlink()
    with pytest.raises(FileNotFoundError):
        FileSource(book, clock=BusyClock()).signature()


def test_a_relative_path_stays_where_it_was(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(book.parent)
    source = FileSource("rules.yaml")
    monkeypatch.chdir("/")
    assert source.read() == RulebookText("rules: []", "yaml", "rules.yaml")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "is empty. A rulebook without rules is written rules: "),
        (b" \n\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"a\nb\n\xff", "rules.yaml:3: this is not UTF-8"),
        (b"a" * (MAX_BYTES + 1), "more than 4,194,304 bytes"),
    ],
)
def test_bytes_that_are_no_rulebook_are_refused(book: Path, raw: bytes, why: str) -> None:
    book.write_bytes(raw)
    with pytest.raises(InvalidRule, match=why):
        FileSource(book, clock=BusyClock()).read()


@pytest.mark.parametrize(
    ("name", "format_"),
    [("a.yml", "yaml"), ("a.YAML", "yaml"), ("a.toml", "toml"), ("a.json", "json"), ("a.conf", None), ("a", None)],
)
def test_the_name_tells_the_format(tmp_path: Path, name: str, format_: str | None) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbfx")
    paper = FileSource(tmp_path / name, clock=BusyClock()).read()
    assert (paper.text, paper.format) == ("x", format_)
    assert paper.text_and_format == ("x", format_)


class SingleVersion:
    """Versions of which one is in force."""

    text = "Redis at here"

    def __init__(self, version: RulebookVersion | None) -> None:
        self.version = version

    def stamp(self) -> tuple[int, int]:
        return (self.version.version, self.version.at_us) if self.version else (0, 0)

    def current(self) -> RulebookVersion | None:
        return self.version


def test_a_version_is_read_as_its_document() -> None:
    version = RulebookVersion(version=3, at_us=5, author="ana", note="", format="yaml", text="# a", document="{}")
    source = PushedSource(SingleVersion(version))
    assert source.signature() == (3, 5)
    paper = source.read()
    assert paper == RulebookText("# a", "yaml", "version 3 in Redis at here", 3, "{}")
    assert paper.text_and_format == ("{}", "json")
    assert PushedSource(SingleVersion(None)).read() is None
