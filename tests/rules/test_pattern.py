"""Patterns: what they mean, beside regular expressions that mean the same; and what no pattern can be."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidRule
from headgate.rules.pattern import Glob, PathPattern

GLOBS = st.text("ab*", min_size=1, max_size=7)
STEPS = st.text("ab*", min_size=1, max_size=3).filter(lambda step: "**" not in step)
PATHS = st.lists(st.text("ab", min_size=1, max_size=3), max_size=5)


@given(GLOBS, st.text("ab", max_size=8))
def test_a_glob_is_a_regular_expression_of_one_kind(glob: str, text: str) -> None:
    same = ".*".join(re.escape(part) for part in glob.split("*"))
    assert Glob(glob).matches(text) is (re.fullmatch(same, text) is not None)


def test_a_glob_without_stars_is_one_text() -> None:
    assert Glob("a.b").exact == "a.b"
    assert Glob("a*").exact is None
    assert not Glob("a.b").matches("axb")


def test_an_empty_glob_says_how_to_match_absence() -> None:
    with pytest.raises(InvalidRule, match="write false for an attribute that is not there"):
        Glob("")


def test_no_text_makes_a_glob_slow() -> None:
    """Backtracking would take longer than the age of the universe."""
    started = time.process_time()
    assert not Glob("*".join("a" * 30) + "*b").matches("a" * 65536)
    assert time.process_time() - started < 1


@given(st.lists(STEPS | st.just("{}"), max_size=4), st.integers(0, 5), PATHS)
def test_a_path_pattern_is_a_regular_expression_of_one_kind(steps: list[str], deep: int, path: list[str]) -> None:
    named = [f"{{n{place}}}" if step == "{}" else step for place, step in enumerate(steps)]
    parts = [f"/(?P<{step[1:-1]}>[^/]+)" if step[0] == "{" else "/" + _segment(step) for step in named]
    if deep <= len(steps):
        named.insert(deep, "**")
        parts.insert(deep, "(?:/[^/]+)*")
    match = re.fullmatch("".join(parts), "".join(f"/{segment}" for segment in path))
    pattern = PathPattern("/" + "/".join(named))
    assert pattern.match(path) == (None if match is None else match.groupdict())
    assert pattern.matches_segments(path) is (match is not None)


def _segment(step: str) -> str:
    return "(?=[^/])" + "[^/]*".join(re.escape(part) for part in step.split("*"))


def test_names_stand_where_their_segments_are() -> None:
    assert PathPattern("/{a}/x/**/{b}/y").captures == {"a": 0, "b": -2}
    assert PathPattern("/{a}/x/**/{b}/y").match(["1", "x", "2", "3", "y"]) == {"a": "1", "b": "3"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("items", 'begins with a slash, such as "/items"'),
        ("", "begins with a slash"),
        ("/**/a/**", "has \\*\\* twice"),
        ("/a/{x}/{x}", "has two segments called x"),
        ("/{x}/**/{x}", "has two segments called x"),
        ("/{user}", "user is the name of something else of the call; take another, such as {the_user}"),
        ("/a-{x}", "a capture is a whole segment, in small letters, such as {sku}"),
        ("/{X}", "a capture is a whole segment"),
        ("/{x}\n", "a capture is a whole segment"),
        ("/{}", "a capture is a whole segment"),
        ("/a}", "a capture is a whole segment"),
        ("/a**", "\\*\\* matches whole segments, as in /api/\\*\\*; or write one \\*"),
        ("/***", "\\*\\* matches whole segments"),
        ("/a/../b", 'no path of a call has the segment "..'),
        ("/./b", 'no path of a call has the segment "."'),
    ],
)
def test_patterns_that_cannot_be(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRule, match=sentence):
        PathPattern(text)
