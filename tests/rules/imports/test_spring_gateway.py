"""Routes of Spring Cloud Gateway as rulebooks: the whole document, the notes, and which rule a call meets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidRule, Limiter, ManualClock
from headgate.rules import imports, load
from headgate.rules.match import Matcher
from tests.rules.imports.translate_and_load import book, document_and_notes, matched_rules, rules

SECONDS = "Spring refills in whole seconds; a rule refills continuously, at the same rate."
EMPTY = "Spring answers 403 to a call without a key; a rule refuses it like any other."

SHOP = """
spring:
  application:
    name: shop-gateway
  cloud:
    gateway:
      default-filters:
        - AddResponseHeader=X-Served-By, gateway
        - name: RequestRateLimiter
          args:
            redis-rate-limiter.replenishRate: 100
            redis-rate-limiter.burstCapacity: 200
      routes:
        - id: login
          uri: lb://accounts
          predicates:
            - Path=/login
            - Method=POST
          filters:
            - name: RequestRateLimiter
              args:
                redis-rate-limiter.replenishRate: 1
                redis-rate-limiter.burstCapacity: 60
                redis-rate-limiter.requestedTokens: 60
                key-resolver: "#{@ipKeyResolver}"
        - id: item service
          uri: lb://items
          predicates:
            - Path=/items/{sku}/**, /articles/{articleId}
            - Header=X-Client, web
          filters:
            - StripPrefix=1
            - name: RequestRateLimiter
              args:
                redis-rate-limiter:
                  replenish-rate: 10
                  burst-capacity: 10
                key-resolver: "#{@apiKeyResolver}"
                deny-empty-key: false
                status-code: SERVICE_UNAVAILABLE
        - id: everything
          uri: lb://web
          predicates:
            - Path=/**
"""


def test_a_whole_gateway() -> None:
    document, notes = document_and_notes(SHOP)
    assert document == {
        "name": "shop-gateway",
        "headers": "spring",
        "defaults": {"fallback": "allow"},
        "conditions": {
            "login": {"path": "/login", "method": "POST"},
            "item-service": {"path": ["/items/{sku}/**", "/articles/*"], "header.x-client": "web"},
        },
        "rules": [
            {
                "name": "login",
                "when": {"path": "/login", "method": "POST"},
                "key": "address",
                "missing": "deny",
                "limit": "1/s burst 60",
                "cost": 60,
            },
            {
                "name": "item-service",
                "when": {"path": ["/items/{sku}/**", "/articles/*"], "header.x-client": "web"},
                "key": "header.x-api-key",
                "missing": "skip",
                "limit": "10/s",
                "refuse": {"status": 503},
            },
            {
                "name": "everything",
                "except": ["login", "item-service"],
                "key": "user",
                "missing": "deny",
                "limit": "100/s burst 200",
            },
        ],
    }
    assert notes == [
        SECONDS,
        EMPTY,
        "line 9: Spring keeps one setting for a route: for login it is the one of line 20, this one is left out.",
        "line 9: Spring keeps one setting for a route: for item-service it is the one of line 33, this one "
        "is left out.",
        "line 25: the code of ipKeyResolver is not in this file: its key is assumed to be address. Please check.",
        "line 38: the code of apiKeyResolver is not in this file: its key is assumed to be "
        "header.x-api-key. Please "
        "check.",
    ]


def test_a_call_meets_the_first_route_that_fits_and_no_other() -> None:
    matcher = Matcher(book(SHOP))
    ann = {"address": "192.0.2.1", "user": "ann", "header.x-api-key": "k", "header.x-client": "web"}
    assert matched_rules(matcher, path="/login", method="POST", **ann) == ["login"]
    assert matched_rules(matcher, path="/login", method="GET", **ann) == ["everything"]
    assert matched_rules(matcher, path="/items/7/reviews", method="GET", **ann) == ["item-service"]
    assert matched_rules(matcher, path="/items/7", method="GET", **{**ann, "header.x-client": "app"}) == [
        "everything"
    ]


def test_sixty_tokens_of_sixty_are_one_call_a_minute() -> None:
    rule = book(SHOP).rules[0]
    clock = ManualClock()
    limiter = Limiter(rule.limit.otherwise[0], clock=clock)
    assert rule.cost is not None
    cost = int(rule.cost.otherwise)
    assert [limiter.take("key", cost).allowed for _ in range(2)] == [True, False]
    clock.advance(59.999)
    assert not limiter.take("key", cost)
    clock.advance(0.001)
    assert limiter.take("key", cost)


def route(predicates: str = "[]", arguments: str = "", more: str = "") -> str:
    rate = "redis-rate-limiter.replenishRate: 5, redis-rate-limiter.burstCapacity: 9"
    return f"""
spring.cloud.gateway.server.webflux:
  routes:
    - {{id: r, predicates: {predicates}, filters: [{{name: RequestRateLimiter, args: {{ {rate}{arguments} }} }}] }}
{more}"""


@pytest.mark.parametrize(
    ("predicate", "when", "note"),
    [
        ("Path=/a/{seg}/**,/b/*.png", {"path": ["/a/{seg}/**", "/b/*.png"]}, None),
        ("Path=/a/{orderId}/{path}", {"path": "/a/*/*"}, None),
        ("Path=/a/{*rest}", {"path": "/a/**"}, None),
        ("Path=/a/file-{n}.txt", {"path": "/a/file-*.txt"}, None),
        ("Path=/**", None, None),
        ("Path=/a/{id:[0-9]+}", {"path": "/a/*"}, 'the path "/a/{id:[0-9]+}" became "/a/*", which is wider.'),
        ("Path=/a?c", {"path": "/a*c"}, 'the path "/a?c" became "/a*c", which is wider.'),
        ("Path=/**/a/**", None, 'the path "/**/a/**" became "/**", which is wider.'),
        ("Host=**.shop.com,api.shop.com", {"host": ["*.shop.com", "shop.com", "api.shop.com"]}, None),
        (
            "Host={sub}.shop.com:8080",
            {"host": "*.shop.com"},
            "in a host * is any text, also with dots, and a port does not count.",
        ),
        ("Method=get,POST", {"method": ["GET", "POST"]}, None),
        (
            "Header=X-Request-Id, \\\\d+",
            {"header.x-request-id": True},
            'the regular expression "\\d+" has no equivalent: header.x-request-id need only be there.',
        ),
        ("Header=X-Plan, gold", {"header.x-plan": "gold"}, None),
        ("Header=X-Plan", {"header.x-plan": True}, None),
        ("Query=green", {"argument.green": True}, "an empty argument.green counts as absent here."),
        (
            "Query=red, gree.",
            {"argument.red": True},
            'the regular expression "gree." has no equivalent: argument.red need only be there.',
        ),
        ("Cookie=choco, dark", {"cookie.choco": "dark"}, None),
        ("RemoteAddr=10.1.0.0/16,::1", {"address": ["10.1.0.0/16", "::1"]}, None),
        (
            "After=2030-01-20T17:42:47Z",
            None,
            "the predicate After has no equivalent: it is left out, and the rule applies without it.",
        ),
        (
            "Weight=group1, 8",
            None,
            "the predicate Weight has no equivalent: it is left out, and the rule applies without it.",
        ),
    ],
)
def test_predicates(predicate: str, when: object, note: str | None) -> None:
    document, notes = document_and_notes(route(f'["{predicate}"]'))
    assert document["rules"][0].get("when") == when
    assert (f"line 4: {note}" in notes) if note else len(notes) == 2


def test_predicates_in_their_long_form() -> None:
    long = """[{name: Path, args: {patterns: [/a/**, /b], matchTrailingSlash: true}},
               {name: Header, args: {regexp: "v1", header: X-Api}}, {name: Method, args: {_genkey_0: GET}}]"""
    assert rules(route(long))[0]["when"] == {"path": ["/a/**", "/b"], "header.x-api": "v1", "method": "GET"}


def test_two_predicates_of_one_kind_must_both_hold() -> None:
    when = rules(route('["Path=/a/{x}/**", "Path=/**/{x}"]'))[0]["when"]
    assert when == {"path": "/a/{x}/**", "all": [{"path": "/**/*"}]}


def test_predicates_that_cannot_all_hold() -> None:
    document, notes = document_and_notes(route("[Method=GET, Method=PUT]"))
    assert document["rules"] == []
    assert "line 4: r is left out: its predicates cannot all hold." in notes


@pytest.mark.parametrize(
    ("resolver", "key"),
    [
        ("userKeyResolver", "user"),
        ("remoteAddrKeyResolver", "address"),
        ("hostNameKeyResolver", "host"),
        ("uriKeyResolver", "path"),
        ("tenantIdKeyResolver", "tenant_id"),
        ("recipientKeyResolver", "recipient"),
        ("keyResolver", "keyresolver"),
    ],
)
def test_resolvers_are_recognized_by_their_names(resolver: str, key: str) -> None:
    document, notes = document_and_notes(route(arguments=f', key-resolver: "#{{@{resolver}}}"'))
    assert document["rules"][0]["key"] == key
    assert (
        notes[-1]
        == f"line 4: the code of {resolver} is not in this file: its key is assumed to be {key}. Please check."
    )


def test_the_resolver_of_principals_is_the_one_of_spring() -> None:
    assert document_and_notes(route(arguments=', keyResolver: "#{@principalNameKeyResolver}"'))[1] == [
        SECONDS,
        EMPTY,
    ]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (route(arguments=", rate-limiter: '#{@mine}'"), "line 4: ratelimiter is not translated: it is left out."),
        (
            route().replace("Capacity: 9", "Capacity: 0"),
            "line 4: burstCapacity 0: every call is refused, because it costs 2 where 1 may pass.",
        ),
        (
            route().replace("Rate: 5", "Rate: '${R:7}'"),
            "line 4: ${R:7} is a placeholder: its default was taken, 7.",
        ),
        (
            route().replace("Rate: 5", "Rate: '${R}'"),
            "line 4: ${R} is a placeholder whose value is not known here.",
        ),
        (
            route().replace("redis-rate-limiter.replenishRate: 5, ", ""),
            "line 4: this limiter has no replenishRate that can be read here: it is left out.",
        ),
        (
            route().replace(", redis-rate-limiter.burstCapacity: 9", ""),
            "line 4: burstCapacity is not given: Spring takes 1.",
        ),
        (
            route(more="---\nspring.config.activate.on-profile: prod\n"),
            "line 6: this part is for a profile only: its routes are taken as if it were on.",
        ),
        (
            "spring.cloud.gateway.default-filters: [{name: RequestRateLimiter}]",
            "line 1: there are no routes that this filter could be for: it is left out.",
        ),
        (
            "spring.cloud.gateway.mvc.routes: [{id: RequestRateLimiter}]",
            "line 1: mvc.routes is not translated: it is left out.",
        ),
    ],
)
def test_differences_are_noted(text: str, note: str) -> None:
    assert note in document_and_notes(text)[1]


def test_the_short_form_of_the_filter() -> None:
    routes = '[{id: r, filters: ["RequestRateLimiter=2, 4, 1, #{@userKeyResolver}"]}]'
    text = f"spring: {{cloud: {{gateway: {{routes: {routes}}}}}}}"
    document, notes = document_and_notes(text)
    assert document["rules"] == [{"name": "r", "key": "user", "missing": "deny", "limit": "2/s burst 4"}]
    assert notes[2] == (
        "line 1: Spring does not read the short form of this filter: it was taken for replenishRate, "
        "burstCapacity, requestedTokens and key-resolver."
    )


def test_settings_for_all_routes() -> None:
    more = "---\nspring.cloud.gateway: {filter.request-rate-limiter.deny-empty-key: false}\n"
    more += "---\nspring.cloud.gateway.redis-rate-limiter.include-headers: false\n"
    document, notes = document_and_notes(route(more=more))
    assert (document["headers"], document["rules"][0]["missing"], notes) == ("off", "skip", [SECONDS])


def test_routes_match_in_their_order() -> None:
    text = """
spring.cloud.gateway.routes:
  - {id: late, order: 5, predicates: [Path=/a/**], filters: ["RequestRateLimiter=1,1"]}
  - {id: other, predicates: [Path=/b/**]}
  - {id: early, order: -1, predicates: [Path=/a/b/**], filters: ["RequestRateLimiter=2,2"]}
  - {id: twin, order: 9, predicates: [Path=/a/**], filters: ["RequestRateLimiter=3,3"]}
"""
    document, notes = document_and_notes(text)
    assert [(rule["name"], rule.get("except")) for rule in document["rules"]] == [
        ("early", None),
        ("late", "early"),
    ]
    assert "line 6: twin is left out: earlier routes take all of its calls." in notes


def test_a_path_expression_may_count_twice_but_never_not_at_all() -> None:
    text = """
spring.cloud.gateway.routes:
  - {id: first, predicates: ["Path=/a/{n:[0-9]+}"]}
  - {id: second, predicates: ["Path=/a/**"], filters: ["RequestRateLimiter=1,1"]}
"""
    document, notes = document_and_notes(text)
    assert "except" not in document["rules"][0]
    assert "line 3: calls that first takes before second are counted by second too." in notes


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("spring: [", "line 1: A value was expected here. Look for a bracket that is not closed."),
        ("- spring", "line 1: The document is a mapping of names and values, not a list."),
        ("spring.cloud.gateway.routes: 3", 'line 1: routes is a list, not "3".'),
        ("spring.cloud.gateway:\n  routes: [3]", 'line 2: A route is a mapping of names and values, not "3".'),
        (
            route().replace("Rate: 5", "Rate: many"),
            'line 4: redisratelimiter.replenishrate is a whole number, not "many".',
        ),
        (
            route(arguments=", status-code: TEAPOT"),
            'line 4: "TEAPOT" is not a status of HTTP, such as TOO_MANY_REQUESTS.',
        ),
    ],
)
def test_an_unreadable_file_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRule) as raised:
        imports.translate(text, "spring")
    assert str(raised.value) == sentence


predicates = st.sampled_from(
    [
        *(
            "Path=/a/**",
            "Path=/a/{b}",
            "Path=/{x}/{y},/z",
            "Path=/a",
            "Path=/a?/**/b/**",
            "Path=a",
            "Path=",
            "Method=GET",
        ),
        *(
            "Host=**.x.org",
            "Host={a}.x.org",
            "Header=X-A, b+",
            "Query=q",
            "Weight=g, 1",
            "Path=/{*all}",
            "Cookie=c, d",
        ),
        *("Path=/{x", "Path=/}{", "Path=/a/{x:a/b}/c", "Host=*", "Host=", "RemoteAddr=10.0.0.0/8"),
    ]
)
limiters = st.none() | st.tuples(
    st.integers(1, 9), st.integers(0, 9), st.sampled_from(["", ", #{@ipKeyResolver}"])
)


@given(st.lists(st.tuples(st.lists(predicates, max_size=3), limiters), max_size=5))
def test_any_translated_routes_can_be_loaded(
    routes: list[tuple[list[str], tuple[int, int, str] | None]],
) -> None:
    text = "spring.cloud.gateway.routes:\n" + ("" if routes else "  []")
    for named, limiter in routes:
        filter_text = f'"RequestRateLimiter={limiter[0]}, {limiter[1]}{limiter[2]}"' if limiter else ""
        quoted = ", ".join(f'"{one}"' for one in named)
        text += f"  - {{predicates: [{quoted}], filters: [{filter_text}]}}\n"
    load.from_mapping(imports.translate(text).document)
