"""Allow-lists of geo and map as a rule's except: a real nginx and the translated rules count the same calls."""

import itertools
from typing import Any

import pytest

from headgate.rules.match import Matcher
from tests.rules.imports.translate_and_load import book, document_and_notes, matched_rules, rules
from tests.servers import Nginx

ZONE = "limit_req_zone $key zone=one:1m rate=1000r/s;\n"
KEY = 'map $limit $key { 0 ""; 1 $binary_remote_addr; }\n'
METHODS = ("GET", "POST", "DELETE")
SOURCES = ("127.0.0.1", "127.0.0.9", "127.1.0.1", "127.1.2.3", "127.1.2.4", "127.9.9.9")
PLANS = (None, "gold", "Gold", "free")
SERVER = """location / { limit_req zone=one burst=1000 nodelay; add_header Counted "$limit_req_status" always;
    content_by_lua_block { ngx.say("ok") } }"""

LISTS: dict[str, tuple[str, Any]] = {
    "the usual form": (
        "geo $limit { default 1; 127.0.0.0/24 0; 127.9.0.0/16 0; ::1 0; }\n" + KEY,
        {"address": ["127.0.0.0/24", "127.9.0.0/16", "::1"]},
    ),
    "networks within networks": (
        "geo $limit { default 1; 127.0.0.0/8 0; 127.1.0.0/16 1; 127.1.2.0/24 0; 127.1.2.3 1; 127.0.0.9/32 0; }\n"
        + KEY,
        {
            "address": "127.0.0.0/8",
            "not": {
                "address": "127.1.0.0/16",
                "not": {"address": "127.1.2.0/24", "not": {"address": "127.1.2.3"}},
            },
        },
    ),
    "nobody but some": (
        "geo $remote_addr $limit { default 0; 127.1.0.0/16 1; 127.0.0.1 1; }\n" + KEY,
        {"not": {"address": ["127.1.0.0/16", "127.0.0.1"]}},
    ),
    "ranges": (
        "geo $limit { ranges; default 1; 127.1.0.0-127.1.2.3 0; }\n" + KEY,
        {"address": ["127.1.0.0/23", "127.1.2.0/30"]},
    ),
    "words and a default of the map": (
        "geo $limit { default visitor; 127.0.0.1 Staff; 127.0.0.9 bot; }\n"
        'map $limit $key { default $remote_addr; staff ""; BOT ""; }\n',
        {"address": ["127.0.0.1", "127.0.0.9"]},
    ),
    "a value that the map does not name": (
        "geo $limit { 127.0.0.1 1; 127.1.0.0/16 2; }\n" + KEY,
        {"not": {"address": "127.0.0.1"}},
    ),
    "only some methods": (
        "map $request_method $key { POST $binary_remote_addr; delete $binary_remote_addr; }\n",
        {"not": {"method": ["POST", "delete"]}},
    ),
    "all but some addresses": (
        'map $remote_addr $key { default $binary_remote_addr; 127.0.0.9 ""; }\n',
        {"address": "127.0.0.9"},
    ),
    "those without a header": (
        'map $http_x_plan $key { "" $binary_remote_addr; default ""; }\n',
        {"not": {"header.x-plan": False}},
    ),
}


@pytest.mark.parametrize("name", LISTS)
def test_nginx_counts_the_same_calls(name: str) -> None:
    lists, exempt = LISTS[name]
    (rule,) = rules(lists + ZONE + "limit_req zone=one;")
    assert rule["except"] == exempt
    assert rule["key"] == "address/32/128"
    matcher = Matcher(book(lists + ZONE + "limit_req zone=one;"))
    counted = []
    with Nginx(SERVER, lists + ZONE) as nginx:
        for method, source, plan in itertools.product(METHODS, SOURCES, PLANS[:2]):
            headers = {} if plan is None else {"X-Plan": plan}
            theirs = nginx.get("/", headers, method, source).headers.get("counted") is not None
            attributes = {f"header.{field.lower()}": value for field, value in headers.items()}
            ours = matched_rules(matcher, method=method, address=source, path="/", **attributes) == ["one"]
            assert ours is theirs, (method, source, plan)
            counted.append(theirs)
    assert set(counted) == {True, False}


def test_values_of_headers_are_noted_because_of_their_case() -> None:
    text = 'map $http_x_plan $key { default $binary_remote_addr; gold ""; }\n' + ZONE + "limit_req zone=one;"
    document, notes = document_and_notes(text)
    assert document["rules"][0]["except"] == {"header.x-plan": "gold"}
    assert "line 1: case matters here in what $http_x_plan is, in nginx's map it did not." in notes


@pytest.mark.parametrize(
    "lists",
    [
        'map $http_user_agent $key { default $binary_remote_addr; "~*bot" ""; }\n',
        "geo $limit { default 1; include allow.conf; }\n" + KEY,
        "geo $limit { default 1; proxy 10.0.0.0/8; 127.0.0.1 0; }\n" + KEY,
        "geo $http_x_real_ip $limit { default 1; 127.0.0.1 0; }\n" + KEY,
        'map $http_x_plan $key { default $binary_remote_addr; "go*" ""; }\n',
        'map $uri $key { default $binary_remote_addr; /health ""; }\n',
        'map $key $key { default $key; a ""; }\n',
        'map $a $key { default $b; x ""; }\nmap $c $b { default $key; y ""; }\n',
    ],
)
def test_lists_without_an_equivalent_are_noted(lists: str) -> None:
    document, notes = document_and_notes(lists + ZONE + "limit_req zone=one;")
    assert "except" not in document["rules"][0]
    assert any("which has no equivalent" in note for note in notes)
