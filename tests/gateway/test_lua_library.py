"""The Lua for nginx: where it is, a copy that stands alone, and files that are there whole or not at all."""

import os
import subprocess
from pathlib import Path

import pytest

from headgate.errors import InvalidRule
from headgate.gateway import lua_library
from headgate.gateway.atomic_file import write


def requires(path: str, *modules: str) -> None:
    """luajit finds these modules there."""
    program = f"package.path = '{path}' " + " ".join(f"require '{name}'" for name in modules)
    subprocess.run(["luajit", "-e", program], check=True, cwd="/")


def test_luajit_finds_it_where_it_says() -> None:
    requires(
        lua_library.package_path(lua_library.folder()),
        "resty.headgate.rules.match",
        "resty.headgate.algorithms.token_bucket",
    )


def test_a_copy_has_every_file_and_no_links(tmp_path: Path) -> None:
    files = lua_library.copy(tmp_path / "new" / "folder")
    target = tmp_path / "new" / "folder"
    assert sorted(path.relative_to(target) for path in target.rglob("*") if path.is_file()) == files
    assert not any(path.is_symlink() for path in target.rglob("*"))
    assert {path.suffix for path in files} == {".lua"}
    assert Path("resty/headgate/algorithms/token_bucket.lua") in files
    requires(
        lua_library.package_path(target), "resty.headgate.rules.match", "resty.headgate.algorithms.token_bucket"
    )


def test_a_copy_over_an_older_one_leaves_what_is_not_ours(tmp_path: Path) -> None:
    lua_library.copy(tmp_path)
    (tmp_path / "resty" / "other.lua").write_text("return 1")
    (tmp_path / "resty" / "headgate" / "match.lua").write_text("error 'old'")
    lua_library.copy(tmp_path)
    requires(lua_library.package_path(tmp_path), "resty.headgate.rules.match", "resty.other")


@pytest.mark.parametrize("name", ["a;b", "a?b", "a$b", 'a"b'])
def test_a_folder_that_a_lua_path_cannot_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRule, match="headgate lua copy DIR"):
        lua_library.package_path(tmp_path / name)


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, b"old")
    with path.open("rb") as reading:
        write(path, b"the new one")
        assert reading.read() == b"old"
    assert path.read_bytes() == b"the new one"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    write(tmp_path / "link", b"text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"text"


def test_it_is_readable_as_new_files_are(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write(tmp_path / "file", b"text")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_a_path_that_is_no_file_is_not_overwritten(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InvalidRule, match="is not a file: it cannot be written"):
            write(place, b"text")
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(InvalidRule, match="cannot be written: No such file or directory"):
        write(tmp_path / "nowhere" / "file", b"text")
    assert os.listdir(tmp_path) == ["pipe"]
