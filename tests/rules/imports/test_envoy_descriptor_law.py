"""To any descriptor the rule applies that the rate limit service would have found, and no other.

The service is written down here a second time, as its lookup goes (GetLimit in src/config/config_impl.go): entry
by entry, without going back; what is found at the last entry counts, if it has a limit.
"""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headgate.rules import imports, load
from headgate.rules.match import Matcher
from headgate.service.envoy.request import Entry, attributes_of

KEYS = ("a", "A", "b", "a-b", "path")
VALUES = ("x", "y", "xy", "x*", "*y", "x*y", "*", "**")

Node = dict[str, Any]


@st.composite
def lists(draw: st.DrawFn, depth: int = 3) -> list[Node]:
    """Descriptors; a key may come again on a path, and paths may have the same keys in another order."""
    entries = draw(
        st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.sampled_from(VALUES)), max_size=5, unique=True)
    )
    return [
        {
            "key": key,
            "value": value,
            "limited": draw(st.booleans()),
            "inner": draw(lists(depth - 1)) if depth > 1 and draw(st.booleans()) else [],
        }
        for key, value in entries
    ]


SENT = ("", "x", "y", "xy", "xzy", "z")
entries = st.builds(Entry, st.sampled_from((*KEYS, "c")), st.sampled_from(SENT))


@st.composite
def descriptors(draw: st.DrawFn, nodes: list[Node]) -> list[Entry]:
    """Entries along a path of the file, mostly; and then perhaps some that are not."""
    found: list[Entry] = []
    depth: int = draw(st.integers(0, 3))
    while nodes and len(found) < depth:
        node = draw(st.sampled_from(nodes))
        found.append(Entry(node["key"], draw(st.sampled_from(SENT))))
        nodes = node["inner"]
    more: int = draw(st.integers(0 if found else 1, 2))
    return found + draw(st.lists(entries, min_size=more // 2, max_size=more // 2 if found else more))


def looked_up(nodes: list[Node], entries: list[Entry]) -> str | None:
    for place, (key, value) in enumerate(entries):
        mine = [node for node in nodes if node["key"] == key]
        exact = [node for node in mine if node["value"] == value]
        wild = [node for node in mine if "*" in (node["value"] or "") and fits(node["value"], value)]
        bare = [node for node in mine if node["value"] is None]
        if not (found := exact or wild or bare):
            return None
        if place == len(entries) - 1:
            return str(found[0]["name"]) if found[0]["limited"] else None
        nodes = found[0]["inner"]
    return None


def fits(pattern: str, value: str) -> bool:
    first, *_, last = pattern.split("*")
    return value.startswith(first) and value.endswith(last) and len(value) >= len(first) + len(last)


def named(nodes: list[Node], names: list[str]) -> None:
    for node in nodes:
        node["name"] = f"limit-{len(names)}"
        names.append(node["name"])
        named(node["inner"], names)


def written(nodes: list[Node], indent: str = "") -> str:
    text = f"{indent}descriptors:\n"
    for node in nodes:
        text += f"{indent}  - key: {node['key']}\n"
        text += f'{indent}    value: "{node["value"]}"\n' if node["value"] else ""
        if node["limited"]:
            text += f"{indent}    rate_limit: {{unit: minute, requests_per_unit: 3, name: {node['name']}}}\n"
        text += written(node["inner"], f"{indent}    ") if node["inner"] else ""
    return text


@given(st.data())
def test_one_rule_applies_the_one_that_the_service_finds(data: st.DataObject) -> None:
    nodes = data.draw(lists())
    entries = data.draw(descriptors(nodes))
    named(nodes, [])
    book = load.from_mapping(imports.translate(f"domain: test\n{written(nodes)}").document)
    node = looked_up(nodes, entries)
    matches = Matcher(book).match(attributes_of("test", entries))
    assert [match.rule.name for match in matches] == ([] if node is None else [node])


@given(st.data())
def test_two_descriptors_share_a_count_only_if_they_are_the_same(data: st.DataObject) -> None:
    nodes = data.draw(lists())
    one, other = data.draw(descriptors(nodes)), data.draw(descriptors(nodes))
    named(nodes, [])
    matcher = Matcher(load.from_mapping(imports.translate(f"domain: test\n{written(nodes)}").document))
    first, second = (
        [(match.rule.name, match.key) for match in matcher.match(attributes_of("test", entries))]
        for entries in (one, other)
    )
    assert not first or (first == second) == (one == other)
