"""The kept book: there as a whole, or not at all."""

import logging
import stat
from pathlib import Path

import pytest

from headgate.clock import ManualClock
from headgate.rules.distribution.disk_cache import CachedRulebook, DiskCache
from headgate.rules.distribution.source import RulebookText

PAPER = RulebookText("rules: []  # Ω\n", "yaml", "version 7 in Redis", 7, '{"rules":[]}')


def test_a_written_rulebook_is_read_with_its_time(tmp_path: Path) -> None:
    clock = ManualClock()
    keep = DiskCache("here", tmp_path / "deep" / "book.json", clock=clock)
    assert keep.read() is None
    keep.write(PAPER)
    assert DiskCache("here", keep.path).read() == CachedRulebook(PAPER, clock.now_us())
    keep.write(PAPER._replace(version=8))
    cached = keep.read()
    assert cached is not None
    assert cached.content.version == 8


def test_only_the_owner_can_read_it_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    keep = DiskCache("here", tmp_path / "deep" / "book.json")
    for _ in range(3):
        keep.write(PAPER)
    assert [file.name for file in keep.path.parent.iterdir()] == ["book.json"]
    assert stat.S_IMODE(keep.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(keep.path.parent.stat().st_mode) == 0o700


def test_a_damaged_cache_is_ignored_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep = DiskCache("here", tmp_path / "book.json")
    keep.write(PAPER)
    whole = keep.path.read_bytes()
    for damaged in (b"", whole[:-1], whole.replace(b"rules", b"RULES"), b"\xff" * 99, whole + b" "):
        caplog.clear()
        keep.path.write_bytes(damaged)
        assert keep.read() is None
        assert [record.getMessage() for record in caplog.records] == [
            f"headgate: the rulebook cached in {keep.path} cannot be used: its digest does not match."
        ]
    keep.path.unlink()
    keep.path.mkdir()
    assert keep.read() is None


def test_an_unwritable_disk_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    keep = DiskCache("here", tmp_path / "file" / "book.json")
    with caplog.at_level(logging.INFO):
        keep.write(PAPER)
        keep.write(PAPER)
    assert [record.getMessage()[:56] for record in caplog.records] == [
        "headgate: the rulebook could not be cached in " + str(keep.path)[:10]
    ]
    (tmp_path / "file").unlink()
    keep.write(PAPER)
    assert keep.read() is not None


def test_a_write_that_fails_leaves_the_last_one(tmp_path: Path) -> None:
    keep = DiskCache("here", tmp_path / "book.json")
    keep.path.mkdir()
    (keep.path / "in the way").touch()
    keep.write(PAPER)
    assert [file.name for file in tmp_path.iterdir()] == ["book.json"]


def test_the_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert DiskCache("here").path.parent == tmp_path / "xdg" / "headgate"
    for none in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", none)
        assert DiskCache("here").path.parent == tmp_path / ".cache" / "headgate"
    monkeypatch.setenv("HOME", "~")
    assert DiskCache("here").path.is_absolute()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert DiskCache("here").path.parent == tmp_path / ".cache" / "headgate"


def test_each_place_has_its_file_whatever_the_password() -> None:
    paths = {DiskCache(f"redis://{host}/{db}").path for host in ("one", "two") for db in (0, 1)}
    assert len(paths) == 4
    assert DiskCache("redis://ana:secret@one/0").path == DiskCache("redis://one/0").path
    assert DiskCache("redis://ana:s/e@cret@one/0").path == DiskCache("redis://one/0").path
