"""To any descriptor the rule applies that the rate limit service would have found, and no other.

The service is written down here a second time, as its lookup goes: entry by entry, without going back.
"""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.rules import imports, load
from headgate.rules.match import Matcher
from tests.rules.imports.told import met

KEYS = "abc"
VALUES = ("x", "y", "xy", "x*", "*y", "x*y", "*")

Node = dict[str, Any]


@st.composite
def lists(draw: st.DrawFn, keys: str = KEYS) -> list[Node]:
    """Descriptors whose keys follow each other in the alphabet, so that no two paths have the same keys."""
    entries = draw(
        st.lists(
            st.tuples(st.sampled_from(keys), st.none() | st.sampled_from(VALUES)),
            max_size=5,
            unique_by=lambda e: e,
        )
    )
    nodes = []
    for key, value in entries:
        deeper = keys[keys.index(key) + 1 :]
        inner = draw(lists(deeper)) if deeper and draw(st.booleans()) else []
        nodes.append({"key": key, "value": value, "limited": draw(st.booleans()), "inner": inner})
    return nodes


descriptors = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(["x", "y", "xy", "xzy", "z"]), min_size=1)


def looked_up(nodes: list[Node], entries: list[tuple[str, str]]) -> str | None:
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
    first, last = pattern.split("*")
    return value.startswith(first) and value.endswith(last) and len(value) >= len(first) + len(last)


def named(nodes: list[Node], names: list[str]) -> None:
    for node in nodes:
        node["name"] = f"limit-{len(names)}"
        names.append(node["name"])
        named(node["inner"], names)


def keys(nodes: list[Node]) -> set[str]:
    return {node["key"] for node in nodes}.union(*(keys(node["inner"]) for node in nodes))


def written(nodes: list[Node], indent: str = "") -> str:
    text = f"{indent}descriptors:\n"
    for node in nodes:
        text += f"{indent}  - key: {node['key']}\n"
        text += f'{indent}    value: "{node["value"]}"\n' if node["value"] else ""
        if node["limited"]:
            text += f"{indent}    rate_limit: {{unit: minute, requests_per_unit: 3, name: {node['name']}}}\n"
        text += written(node["inner"], f"{indent}    ") if node["inner"] else ""
    return text


@given(lists(), descriptors)
def test_one_rule_applies_the_one_that_the_service_finds(nodes: list[Node], descriptor: dict[str, str]) -> None:
    named(nodes, [])
    descriptor = {key: value for key, value in descriptor.items() if key in keys(nodes)}
    assume(descriptor)
    book = load.of(imports.translate(f"domain: test\n{written(nodes)}").document)
    found = looked_up(nodes, sorted(descriptor.items()))
    assert met(Matcher(book), **descriptor) == ([] if found is None else [found])
