"""A rule of an nginx file applies to a path just if the location that nginx chooses has its limit.

nginx's choice is written down here a second time: an exact location, or the longest prefix, unless an expression
comes before it. A slash at the end of a path does not count, in nginx it does; that is the one thing in which the
two are known to differ.
"""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from headgate.rules.imports.nginx_locations import regex_patterns
from headgate.rules.match import Matcher
from tests.rules.imports.translate_and_load import book, matched_rules

SEGMENTS = st.sampled_from(["a", "b", "ab", "b.js"])
PATHS = st.lists(SEGMENTS, max_size=3).map(lambda parts: "/" + "/".join(parts))
ZONES = ("one", "two")

Location = dict[str, Any]

limits = st.none() | st.lists(st.sampled_from(ZONES), unique=True, min_size=1)


@st.composite
def locations(draw: st.DrawFn) -> list[Location]:
    by_path: dict[str, Location] = {}
    for path in draw(st.lists(PATHS, max_size=5)):
        exact = draw(st.booleans())
        written = path if exact or path == "/" or draw(st.booleans()) else f"{path}/"
        sign = "= " if exact else draw(st.sampled_from(["", "^~ "]))
        key = f"={path}" if exact else written
        by_path.setdefault(key, {"sign": sign, "path": written, "limits": draw(limits), "exact": exact})
    return list(by_path.values())


def chosen(places: list[Location], scripts: Location | None, path: str) -> Location | None:
    for place in places:
        if place["exact"] and place["path"] == path:
            return place
    prefixes = [one for one in places if not one["exact"] and f"{path.rstrip('/')}/".startswith(one["path"])]
    best = max(prefixes, key=lambda one: len(one["path"]), default=None)
    firm = best is not None and best["sign"] == "^~ "
    return scripts if scripts and path.endswith(".js") and not firm else best


def conf(places: list[Location], around: list[str] | None) -> str:
    zones = "".join(f"limit_req_zone $binary_remote_addr zone={zone}:1m rate=5r/s;\n" for zone in ZONES)
    text = f"{zones}server {{\n{directives(around)}"
    for place in places:
        text += f"location {place['sign']}{place['path']} {{ {directives(place['limits'])} }}\n"
    return text + "}"


def directives(zones: list[str] | None) -> str:
    return "".join(f"limit_req zone={zone} burst=3;" for zone in zones or ())


@given(
    locations(),
    st.none() | limits.map(lambda zones: {"sign": "~ ", "path": r"\.js$", "limits": zones}),
    limits,
    PATHS,
)
@example(
    [
        {"sign": "", "path": "/a/", "limits": ["one"], "exact": False},
        {"sign": "= ", "path": "/a", "limits": ["two"], "exact": True},
    ],
    None,
    None,
    "/a",
)
def test_a_limit_is_where_it_is_in_nginx(
    places: list[Location], scripts: Location | None, around: list[str] | None, path: str
) -> None:
    place = chosen(places, scripts, path)
    expected = (place["limits"] if place else None) or around or []
    names = matched_rules(
        Matcher(book(conf([*places, *([scripts] if scripts else [])], around), kind="nginx")),
        path=path,
        address="192.0.2.1",
    )
    assert sorted(names) == sorted(expected)


def test_translatable_expressions() -> None:
    assert regex_patterns(r"\.php$") == ["/**/*.php"]
    assert regex_patterns(r"\.(?:css|js)$") == ["/**/*.css", "/**/*.js"]
    assert regex_patterns("^/api/") == ["/api/**"]
    assert regex_patterns("^/api") == ["/api*/**"]
    assert regex_patterns("^/api$") == ["/api"]
    for expression in (r"^/(a|b)", r"\.php", "/api", r"^/a\.b$", "(", "^/a{2}"):
        assert regex_patterns(expression) is None
