"""Tables: aligned, as wide as the terminal at most, and deaf to what a key would like a terminal to do."""

import pytest

from headgate.cli.text_style import Style
from headgate.cli.text_table import Cell, TextTable, display_width, printable

PLAIN = Style(color=False, blocks=True)
COLORS = Style(color=True, blocks=True)


def lines(table: TextTable, width: int | None = None, ink: Style = PLAIN) -> list[str]:
    return table.lines(width, ink)


def test_words_stand_left_and_numbers_right() -> None:
    table = TextTable(
        ("rule", "used", "limit"), [("login", 7, "10/minute"), ("a", 12_345, None)], right_aligned=("used",)
    )
    assert lines(table) == [
        "rule     used  limit",
        "login       7  10/minute",
        "a      12,345  -",
    ]


@pytest.mark.parametrize("width", [30, 40, 60, 79])
def test_it_fits_and_only_the_widest_words_are_cut(width: int) -> None:
    table = TextTable(
        ("rule", "key", "used"), [("login", "k" * 100, 123_456), ("x", "short", 1)], right_aligned=("used",)
    )
    shown = lines(table, width)
    assert max(map(display_width, shown)) <= width
    assert shown[1].startswith("login  kkk")
    assert shown[1].endswith("…  123,456")
    assert "short" in shown[2]


def test_numbers_are_never_cut_even_if_that_is_too_wide() -> None:
    table = TextTable(("a", "b"), [(10**12, 10**12)], right_aligned=("a", "b"))
    assert lines(table, 10)[1] == "1,000,000,000,000  1,000,000,000,000"


def test_into_a_pipe_nothing_is_cut() -> None:
    assert lines(TextTable(("key",), [("k" * 500,)]))[1] == "k" * 500


def test_colours_take_no_room_and_only_a_terminal_gets_them() -> None:
    table = TextTable(("x", "y"), [(Cell("no", "red"), 1), ("yes", 2)], right_aligned=("y",))
    assert "\x1b" not in "".join(lines(table))
    assert lines(table, ink=COLORS)[1] == "\x1b[31mno\x1b[0m   1"


def test_characters_that_take_two_cells_are_counted_so() -> None:
    table = TextTable(("key", "n"), [("用户", 1), ("abcd", 2)], right_aligned=("n",))
    assert lines(table)[1:] == ["用户  1", "abcd  2"]
    assert display_width(lines(TextTable(("key",), [("用户用户用户用户",)]), 9)[1]) <= 9


@pytest.mark.parametrize(
    ("key", "shown"),
    [("\x1b[2J", "\\x1b[2J"), ("a\nb", "a\\nb"), ("\udc80", "\\udc80"), ("‮x", "\\u202ex"), ("ann", "ann")],
)
def test_a_key_cannot_speak_to_the_terminal(key: str, shown: str) -> None:
    assert printable(key) == shown
    assert lines(TextTable(("key",), [(key,)]))[1] == shown
