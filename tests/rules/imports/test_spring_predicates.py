"""Two Spring routes are treated as exclusive only where no call can match both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.rules.imports.spring_predicates import disjoint
from headgate.rules.pattern import PathPattern

SEGMENTS = st.sampled_from(["a", "b", "ab", "*", "{x}", "a*"])
HEADS = st.lists(SEGMENTS, max_size=3, unique=True).map(lambda parts: "".join(f"/{part}" for part in parts))
PATTERNS = st.one_of(HEADS, HEADS.map("{}/**".format), HEADS.map("/**{}".format)).map(lambda text: text or "/")
PATHS = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4)


@given(PATTERNS, PATTERNS, PATHS)
def test_paths_that_both_mean_keep_routes_together(one: str, other: str, path: list[str]) -> None:
    if PathPattern(one).matches_segments(path) and PathPattern(other).matches_segments(path):
        assert not disjoint({"path": one}, {"path": other})
        assert not disjoint({"path": [one, "/zz"]}, {"path": ["/yy", other]})


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"path": "/a/**"}, {"path": "/b/**"}, True),
        ({"path": "/a/**"}, {"path": "/a/b"}, False),
        ({"path": "/a"}, {"path": "/a/b"}, True),
        ({"path": "/a"}, {"path": "/a/**"}, False),
        ({"path": "/**"}, {"path": "/a/b"}, False),
        ({"method": "GET"}, {"method": ["PUT", "POST"]}, True),
        ({"method": ["GET", "PUT"]}, {"method": "PUT"}, False),
        ({"host": "a.org"}, {"host": "b.org"}, True),
        ({"host": "A.org"}, {"host": "a.ORG"}, False),
        ({"host": "*.org"}, {"host": "a.org"}, False),
        ({"host": "a.org"}, {"path": "/a"}, False),
        ({}, {"path": "/a"}, False),
    ],
)
def test_routes_that_cannot_meet(one: dict[str, object], other: dict[str, object], expected: bool) -> None:
    assert disjoint(one, other) is expected
    assert disjoint(other, one) is expected
