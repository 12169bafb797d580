"""nginx configurations as rulebooks: the whole document, the notes, and that the queue is nginx's.

The reason for its length: each case holds a whole configuration and its whole document.
"""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate import InvalidRule, LeakyBucket, Limiter, ManualClock
from headgate.rules import imports, load
from headgate.rules.match import Matcher
from tests.repo_rules.repository import ROOT
from tests.rules.imports.translate_and_load import book, document_and_notes, matched_rules, rules

EVERYWHERE = "nginx counts on each machine by itself; these rules count for all. where: node keeps nginx's way."
SLASH = "A slash at the end does not count: location /api/ is also /api."
DEFAULTS = {"missing": "skip", "refuse": {"status": 503}}
ZONE = "limit_req_zone $binary_remote_addr zone=one:10m rate=1r/s;\n"

SITE = """
http {
    include mime.types;
    include conf.d/*.conf;
    limit_req_zone $binary_remote_addr zone=perip:10m rate=10r/s;
    limit_req_zone $server_name zone=perserver:10m rate=600r/m;   # a comment
    limit_conn_zone $binary_remote_addr zone=addr:10m;
    limit_req_log_level warn;

    server {
        listen 443 ssl;
        server_name shop.example .shop.test;
        limit_req zone=perip burst=20 nodelay;
        limit_req_status 429;

        location / { proxy_pass http://app; }
        location /login {
            limit_req zone=perip burst=5 delay=2;
            limit_req zone=perserver burst=10;
        }
        location /download/ {
            limit_conn addr 2;
            limit_rate 100k;
        }
        location = /health { limit_req zone=perserver; limit_req_dry_run on; }
        location ~ ^/v[0-9]+/ { limit_req zone=perserver burst=100; }
    }
}
"""


def test_a_whole_site() -> None:
    hosts = ["shop.example", "shop.test", "*.shop.test"]
    document, notes = document_and_notes(SITE, name="site")
    assert document == {
        "name": "site",
        "defaults": DEFAULTS,
        "rules": [
            {
                "name": "perip",
                "when": {"host": hosts, "not": {"path": ["/login*/**", "/health"]}},
                "key": "address/32/128",
                "limit": "10/s queue 20 nodelay",
                "refuse": {"status": 429},
            },
            {
                "name": "perip-2",
                "when": {"host": hosts, "path": "/login*/**"},
                "key": "address/32/128",
                "limit": "10/s queue 5 delay 2",
                "refuse": {"status": 429},
            },
            {
                "name": "perserver",
                "when": {"host": hosts, "path": "/login*/**"},
                "key": "host",
                "limit": "600/minute queue 10",
                "refuse": {"status": 429},
            },
            {
                "name": "addr",
                "when": {"host": hosts, "path": "/download/**"},
                "key": "address/32/128",
                "limit": "2 slots",
            },
            {
                "name": "perserver-2",
                "when": {"host": hosts, "path": "/health"},
                "key": "host",
                "limit": "600/minute queue 0",
                "mode": "shadow",
                "refuse": {"status": 429},
            },
        ],
    }
    several = "is used with several numbers: each of them is a rule that counts alone."
    assert notes == [
        SLASH,
        EVERYWHERE,
        'line 4: "conf.d/*.conf" is not read: translate it with this file.',
        "line 6: $server_name became host: counts are kept for each requested host, not for each server.",
        "line 8: limit_req_log_level is left out: logging is not part of a rulebook.",
        "line 10: nginx sends calls for hosts that no server names to its default server; here they meet only the "
        "rules that name no host.",
        f'line 13: the zone "perip" {several}',
        f'line 18: the zone "perip" {several}',
        f'line 19: the zone "perserver" {several}',
        "line 23: limit_rate limits bandwidth, which has no equivalent: it is left out.",
        f'line 25: the zone "perserver" {several}',
        'line 26: the regular expression "^/v[0-9]+/" has no equivalent: the limits of this location are left '
        "out, and its calls are counted as if it were not there.",
    ]


def test_one_limit_for_everything_has_no_condition() -> None:
    assert document_and_notes(
        f"{ZONE} limit_req zone=one; server {{ server_name a.example; location / {{ }} }}"
    ) == (
        {
            "defaults": DEFAULTS,
            "rules": [{"name": "one", "key": "address/32/128", "limit": "1/s queue 0"}],
        },
        [EVERYWHERE],
    )


def test_a_zone_that_several_places_use_alike_is_one_count() -> None:
    text = f"{ZONE} server {{ location /a {{ limit_req zone=one; }} location /b {{ limit_req zone=one; }} }}"
    assert rules(text) == [
        {"name": "one", "when": {"path": ["/a*/**", "/b*/**"]}, "key": "address/32/128", "limit": "1/s queue 0"}
    ]


def test_an_inner_level_has_its_limits_or_those_around_it() -> None:
    text = f"""{ZONE} limit_conn_zone $uri zone=files:1m;
    limit_req zone=one;
    server {{
        server_name a.example;
        limit_conn files 3;
        location /own {{ limit_conn files 9; location /own/deep {{ limit_req zone=one burst=9; }} }}
    }}
    server {{ server_name _; }}"""
    matcher = Matcher(book(text))
    names = {rule.name: rule.limit.otherwise[0].text for rule in matcher.book.rules}

    def limits(host: str, path: str) -> set[str]:
        return {names[name] for name in matched_rules(matcher, host=host, path=path, address="192.0.2.1")}

    assert limits("a.example", "/") == {"1/s queue 0", "3 slots"}
    assert limits("a.example", "/own/x") == {"1/s queue 0", "9 slots"}
    assert limits("a.example", "/own/deep/x") == {"1/s queue 9", "9 slots"}
    assert limits("b.example", "/own/deep/x") == {"1/s queue 0"}


def test_a_server_for_all_other_hosts() -> None:
    text = f"{ZONE} server {{ server_name a.example *.b.example; }} server {{ limit_req zone=one; }}"
    assert rules(text)[0]["when"] == {"all": [{"not": {"host": ["a.example", "*.b.example"]}}]}


def test_translatable_expressions() -> None:
    text = f"""{ZONE} limit_req zone=one burst=1;
    server {{
        location ~ \\.php$ {{ limit_req zone=one burst=2; }}
        location ~* \\.(jpg|png)$ {{ limit_req zone=one burst=3; }}
        location ^~ /static/ {{ }}
    }}"""
    document, notes = document_and_notes(text)
    matcher = Matcher(load.from_mapping(document))
    found = {
        path: matched_rules(matcher, path=path, address="192.0.2.1")
        for path in ("/", "/x/y.php", "/z.png", "/static/y.php")
    }
    assert found == {"/": ["one"], "/x/y.php": ["one-2"], "/z.png": ["one-3"], "/static/y.php": ["one"]}
    assert 'line 5: case matters here in "\\.(jpg|png)$", in nginx it did not.' in notes


@pytest.mark.parametrize(
    ("key", "expected", "notes"),
    [
        ("$binary_remote_addr", "address/32/128", []),
        ("$remote_addr", "address/32/128", []),
        ("$host", "host", []),
        ("$http_x_api_key", "header.x-api-key", []),
        ("$arg_q", "argument.q", []),
        ("$cookie_sid", "cookie.sid", []),
        ("$remote_user", "user", []),
        ("$uri", "path", []),
        ("$request_method", "method", []),
        ("$binary_remote_addr$uri", ["address/32/128", "path"], []),
        ('"${http_x_a}:$arg_b $http_x_a"', ["header.x-a", "argument.b"], []),
        ("all", None, []),
        ("$http_host", "host", ["line 1: $http_host became host: the port does not count."]),
        (
            "$request_uri",
            "path",
            ["line 1: $request_uri became path: the path counts as it is meant, and its query does not."],
        ),
        (
            "$ssl_client_s_dn",
            "ssl_client_s_dn",
            [
                "line 1: $ssl_client_s_dn has no equivalent: the attribute ssl_client_s_dn must be supplied "
                "by the caller."
            ],
        ),
    ],
)
def test_variables(key: str, expected: object, notes: list[str]) -> None:
    document, note_lines = document_and_notes(f"limit_req_zone {key} zone=one:1m rate=1r/s; limit_req zone=one;")
    assert document["rules"][0].get("key") == expected
    assert note_lines == [EVERYWHERE, *notes]


def test_clients_exempt_by_a_map_are_excepted() -> None:
    text = """geo $limit { default 1; 10.0.0.0/8 0; }
    map $limit $limit_key { 0 ""; 1 $binary_remote_addr; }
    limit_req_zone $limit_key zone=one:10m rate=5r/s;
    limit_req zone=one;"""
    document, notes = document_and_notes(text)
    rule = {"name": "one", "except": {"address": "10.0.0.0/8"}, "key": "address/32/128", "limit": "5/s queue 0"}
    assert document["rules"] == [rule]
    assert notes == [EVERYWHERE]


@pytest.mark.parametrize("key", ["$limit_key$uri", "$limit_key $uri"])
def test_a_map_joined_with_another_key_exempts_no_client(key: str) -> None:
    text = f"""map $request_method $limit_key {{ POST $binary_remote_addr; }}
    limit_req_zone {key} zone=one:10m rate=5r/s; limit_req zone=one;"""
    document, notes = document_and_notes(text)
    rule = {"name": "one", "key": ["address/32/128", "path"], "limit": "5/s queue 0"}
    assert document["rules"] == [rule]
    assert len(notes) == 2


def test_tengine_counts_by_several_keys() -> None:
    text = "limit_req_zone $binary_remote_addr $uri $arg_q zone=one:3m rate=1r/s; limit_req zone=one;"
    document, notes = document_and_notes(text)
    assert document["rules"][0]["key"] == ["address/32/128", "path", "argument.q"]
    assert notes == [EVERYWHERE]


@pytest.mark.parametrize(
    ("off", "limited"),
    [
        ("location /off { limit_req off; }", {"/": True, "/off": False, "/off/a": False}),
        ("location /off { limit_req off; limit_req zone=one; }", {"/": True, "/off": False}),
        ("location /on { limit_req on; }", {"/": True, "/on": True}),
        (
            "location /off { limit_req off; location /off/in { limit_req zone=one; } }",
            {"/off": False, "/off/in": True},
        ),
        ("location /off { limit_conn off; }", {"/": True, "/off": True}),
    ],
)
def test_off_switches_limits_off_in_its_place(off: str, limited: dict[str, bool]) -> None:
    matcher = Matcher(book(f"{ZONE}server {{ limit_req zone=one; {off} }}"))
    limits_by_path = {path: bool(matched_rules(matcher, path=path, address="192.0.2.7")) for path in limited}
    assert limits_by_path == limited


def test_off_applies_to_its_module() -> None:
    text = f"{ZONE}limit_conn_zone $host zone=c:1m; server {{ limit_req zone=one; limit_conn c 2; %s }}"
    matcher = Matcher(book(text % "location /off { limit_conn off; }"))
    assert matched_rules(matcher, path="/off", address="192.0.2.7", host="a") == ["one"]


def test_directives_of_tengine_are_noted() -> None:
    text = f"{ZONE}limit_req_whitelist geo_var_name=white geo_var_value=1; limit_req zone=one forbid_action=@a;"
    notes = document_and_notes(text)[1]
    assert any("limit_req_whitelist is left out" in note for note in notes)
    assert any("forbid_action is left out" in note for note in notes)


def test_a_rate_without_its_r_is_read_and_noted() -> None:
    document, notes = document_and_notes("limit_req_zone $uri zone=one:1m rate=5/m; limit_req zone=one;")
    assert document["rules"][0]["limit"] == "5/minute queue 0"
    assert "line 1: nginx itself refuses rate=5/m: 5r/m was read." in notes


def test_a_map_that_cannot_be_followed() -> None:
    document, notes = document_and_notes(
        "map $uri $k { a 1; b 2; }\nlimit_req_zone $k zone=one:1m rate=1r/s; limit_req zone=one;"
    )
    assert document["rules"][0]["key"] == "k"
    assert notes[1:] == [
        "line 1: $k is made by map, which has no equivalent: the attribute k must be supplied by the caller."
    ]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("limit_req zone=other;", 'the zone "other" is not defined here: this limit_req is left out.'),
        ("server { server_name ~^www; }", 'the regular expression "^www" has no equivalent: it is left out.'),
        (
            "server { location @x { limit_req zone=one; } }",
            "calls are sent to @x inside: its limits are left out.",
        ),
        ("if ($x) { limit_req zone=one; }", "limits inside of if are not allowed in nginx: they are left out."),
        ("server { location /a*b { } }", '"/a*b" cannot be a path here: the location is left out.'),
        ("limit_conn_zone $host zone=c:1m; limit_conn c 0;", "limit_conn of 0 has no equivalent: it is left out."),
    ],
)
def test_omitted_directives_are_noted(text: str, note: str) -> None:
    assert f"line 2: {note}" in document_and_notes(f"{ZONE}{text}", kind="nginx")[1]


def test_streams_are_not_calls() -> None:
    notes = document_and_notes("stream { limit_conn_zone $host zone=c:1m; limit_conn c 1; }")[1]
    assert notes[1:] == ["line 1: limits in a stream block do not apply to HTTP calls: they are left out."]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("limit_req_zone $host;", "line 1: limit_req_zone has a key and a zone=NAME:SIZE."),
        ("limit_req_zone $host zone=a:1m rate=5;", 'line 1: a rate is rate=10r/s or rate=10r/m, not "5".'),
        ("limit_req_zone $host zone=a:1m rate=0r/s;", 'line 1: a rate is rate=10r/s or rate=10r/m, not "0r/s".'),
        ("limit_req burst=5;", "line 1: limit_req names a zone."),
        (f"{ZONE}limit_req zone=one burst=many;", "line 2: limit_req needs a whole number."),
        ("limit_conn_zone $host zone=c:1m;\nlimit_conn c;", "line 2: limit_conn needs a whole number."),
        ("limit_req_status;", "line 1: limit_req_status needs a whole number."),
        ("server { location /a { }\nlocation /a { } }", 'line 2: the location "/a" appears twice in its server.'),
        (f"{ZONE}server {{ location {{ }} }}", "line 2: a location has a path."),
    ],
)
def test_files_that_nginx_refuses_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRule) as raised:
        imports.translate(text, "nginx")
    assert str(raised.value) == sentence


def test_the_loaded_limit_is_the_one_that_nginx_was_recorded_with() -> None:
    """tests/recorded replays the recordings on that limit; so it is enough that ours is the same."""
    seen = 0
    for line in (ROOT / "tests/vectors/nginx_fakeclock.jsonl").read_text().splitlines():
        config = json.loads(line)["config"]
        if "rate" not in config:
            continue
        nodelay = config.get("delay") == "nodelay"
        given = "nodelay" if nodelay else f"delay={config['delay']}" if config.get("delay") else ""
        zone = f"limit_req_zone $host zone=one:1m rate={config['rate']};"
        loaded = book(f"{zone} limit_req zone=one burst={config['burst']} {given};").rules[0].limit.otherwise
        per = 1 if config["rate"].endswith("s") else 60
        amount = int(config["rate"][:-3])
        assert loaded == (LeakyBucket(amount, per, config["burst"], None if nodelay else config.get("delay", 0)),)
        assert loaded[0].args[0] == config["rate_milli_per_s"]
        seen += 1
    assert seen > 20


def test_six_a_minute_with_a_burst_of_five() -> None:
    """As a real nginx did it: six at once, and then one every ten seconds."""
    text = "limit_req_zone $host zone=one:1m rate=6r/m; limit_req zone=one burst=5 nodelay;"
    clock = ManualClock()
    limiter = Limiter(book(text).rules[0].limit.otherwise[0], clock=clock)
    assert [limiter.take("key").allowed for _ in range(7)] == [True] * 6 + [False]
    clock.advance(11)
    assert [limiter.take("key").allowed for _ in range(2)] == [True, False]
    clock.advance(10.5)
    assert [limiter.take("key").allowed for _ in range(2)] == [True, False]


WORDS = [
    *("http", "server", "location", "limit_req", "limit_conn", "limit_req_zone", "limit_conn_zone", "server_name"),
    *("limit_req_status", "limit_req_dry_run", "limit_conn_status", "map", "geo", "include", "if", "zone=a", "on"),
    *(
        "zone=b:1m",
        "rate=5r/s",
        "rate=9r/m",
        "burst=3",
        "nodelay",
        "delay=2",
        "a",
        "b",
        "3",
        "429",
        "/",
        "/x",
        "=",
    ),
    *(
        "/x/y",
        "~",
        "^~",
        "~*",
        "@z",
        "\\.php$",
        "^/x",
        "$host",
        "$uri",
        "$a",
        "$b$host",
        ".example.com",
        "*.c",
        "_",
    ),
    *("~r", ";", ";", ";", "{", "}", "}", "\n", "#", '"q"', "'r"),
]


@given(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join))
def test_any_directives_are_translated_or_refused(text: str) -> None:
    try:
        translated = imports.translate(text, "nginx")
    except InvalidRule:
        return
    load.from_mapping(translated.document)


blocks = st.recursive(
    st.lists(
        st.sampled_from(
            [
                *("limit_req zone=a;", "limit_req zone=a burst=2;", "limit_conn c 3;", "limit_req_status 429;"),
                *("limit_req_dry_run on;", "limit_req zone=b nodelay;", "server_name a.example;"),
            ]
        ),
        max_size=3,
    ).map("".join),
    lambda inner: st.tuples(
        st.sampled_from(
            ["server", "location /", "location /x", "location = /x/y", "location ~ \\.js$", "location ~ x+"]
        ),
        inner,
        inner,
    ).map(lambda parts: f"{parts[0]} {{ {parts[1]} }} {parts[2]}"),
    max_leaves=8,
)


@given(blocks)
def test_every_configuration_that_is_translated_can_be_loaded(text: str) -> None:
    zones = "limit_req_zone $host zone=a:1m rate=1r/s; limit_req_zone $arg_x zone=b:1m rate=2r/m;"
    try:
        translated = imports.translate(f"{zones} limit_conn_zone $uri zone=c:1m; {text}", "nginx")
    except InvalidRule as refused:
        assume("appears twice" not in str(refused))
        raise
    load.from_mapping(translated.document)
