"""The Flask extension: limits of applications, blueprints, views and classes, on real servers.

The file is long for one reason: each way to write a limit has its story here, on the same server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from flask import Blueprint, Flask, Response, abort, g, make_response, redirect, request, stream_with_context
from flask.typing import ResponseReturnValue
from flask.views import MethodView, View
from werkzeug.exceptions import HTTPException
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import EnvironBuilder

from headgate import ManualClock
from headgate.errors import InvalidRule, InvalidRulebook, InvalidSetting
from headgate.integrations.flask import RateLimiter, RateLimitExceeded, exempt, limit
from tests.integrations.wsgi_servers import THREADED, serve
from tests.servers import RedisServer


def make_app(**settings: Any) -> Flask:
    app = Flask("tests.integrations.test_flask")
    RateLimiter(app, clock=ManualClock(), **settings)
    return app


def get(app: Flask, path: str = "/", times: int = 1, **more: Any) -> list[int]:
    client = app.test_client()
    return [client.open(path, buffered=True, **more).status_code for _ in range(times)]


def policy(app: Flask, path: str = "/", **more: Any) -> str | None:
    return app.test_client().open(path, **more).headers.get("RateLimit-Policy")


@pytest.mark.parametrize("kind", THREADED)
def test_every_response_has_the_fields(kind: str) -> None:
    app = make_app(limits=[limit("1000/minute")])
    app.config["PROPAGATE_EXCEPTIONS"] = False

    @app.get("/own")
    def custom_response() -> Response:
        return Response("own", headers={"X-Own": "1"})

    @app.get("/redirect")
    def moved() -> ResponseReturnValue:
        return redirect("/own")

    @app.get("/unchanged")
    def unchanged() -> ResponseReturnValue:
        response = make_response("unchanged")
        response.set_etag("1")
        return response.make_conditional(request)

    @app.get("/stream")
    def streamed() -> ResponseReturnValue:
        return Response(stream_with_context(iter(["one ", "two"])))

    @app.get("/abort")
    def aborted() -> ResponseReturnValue:
        abort(403)

    @app.get("/raise")
    def fail() -> ResponseReturnValue:
        raise RuntimeError("not handled")

    @app.get("/handled")
    def fail_handled() -> ResponseReturnValue:
        raise KeyError("handled")

    @app.errorhandler(KeyError)
    def answer(error: KeyError) -> ResponseReturnValue:
        return "handled", 409

    expected = {
        "/own": 200,
        "/redirect": 302,
        "/unchanged": 304,
        "/stream": 200,
        "/abort": 403,
        "/raise": 500,
        "/handled": 409,
        "/none": 404,
    }
    with serve(kind, app) as client:
        for number, (path, status) in enumerate(expected.items(), start=1):
            reply = client.get(path, headers={"If-None-Match": '"1"'})
            assert (path, reply.status_code) == (path, status)
            assert reply.headers["RateLimit"].startswith(f'"app";r={1000 - number};'), path
        assert client.post("/own").status_code == 405
        assert client.get("/stream").text == "one two"


def test_views_of_all_kinds_are_counted_once() -> None:
    app = make_app(limits=[limit("100/minute", key=None)])

    @app.get("/sync/<int:number>")
    @limit("2/minute")
    def sync(number: int) -> str:
        return str(number)

    @app.get("/async")
    @limit("2/minute")
    async def awaited() -> str:
        await asyncio.sleep(0)
        return "awaited"

    @app.get("/two")
    @limit("3/minute", key=None)
    @limit("2/minute")
    def two() -> str:
        return sync(2)  # its limit is another one, and counts here as well

    for path in ("/sync/1", "/async", "/two"):
        assert get(app, path, 3) == [200, 200, 429], path
    assert policy(app, "/sync/2") == '"app";q=100;w=60, "GET /sync/{number}";q=2;w=60'
    assert '"app";r=93' in app.test_client().get("/none").headers["RateLimit"]  # six passed, and this one
    assert asyncio.iscoroutinefunction(awaited)
    assert sync.__name__ == "sync"


def test_classes_and_methods_of_classes() -> None:
    app = make_app(default_limits=[limit("7/minute")])

    @limit("5/minute")
    class Goods(MethodView):
        @limit("1/minute")
        def get(self) -> str:
            return "items"

        def post(self) -> str:
            return "made"

    class Orders(MethodView):
        @limit("1/minute")
        def get(self) -> str:
            return "orders"

        @exempt
        def post(self) -> str:
            return "made"

        def put(self) -> str:
            return "changed"

    class Page(View):
        decorators = [limit("2/minute")]  # noqa: RUF012

        def dispatch_request(self) -> str:
            return "page"

    app.add_url_rule("/items", view_func=Goods.as_view("items"))
    app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    app.add_url_rule("/page", view_func=Page.as_view("page"))
    assert policy(app, "/items") == '"GET|POST /items";q=5;w=60, "GET /items";q=1;w=60'
    assert policy(app, "/items", method="POST") == '"GET|POST /items";q=5;w=60'
    assert get(app, "/items", 2) == [429, 429]
    assert get(app, "/items", 4, method="POST") == [200, 200, 200, 429]
    assert policy(app, "/orders", method="HEAD") == '"GET /orders";q=1;w=60'
    assert policy(app, "/orders", method="POST") is None
    assert policy(app, "/orders", method="PUT") == '"PUT /orders";q=7;w=60'
    assert get(app, "/page", 3) == [200, 200, 429]


def test_blueprints_nested_and_exempt() -> None:
    app = make_app(default_limits=[limit("9/minute")], limits=[limit("100/minute", name="all")])
    outer, inner, health = Blueprint("outer", __name__), Blueprint("inner", __name__), Blueprint("up", __name__)

    @inner.get("/item")
    @limit("3/minute")
    def item() -> str:
        return "item"

    @inner.get("/free")
    @exempt
    def free() -> str:
        return "free"

    @outer.get("/list")
    def listed() -> str:
        return "list"

    @health.get("/health")
    def healthy() -> str:
        return "ok"

    @app.get("/")
    def home() -> str:
        return "home"

    limit("5/minute", name="outer")(outer)
    limit("4/minute")(inner)
    exempt(health)
    outer.register_blueprint(inner, url_prefix="/inner")
    app.register_blueprint(outer, url_prefix="/outer")
    app.register_blueprint(health)
    assert policy(app, "/outer/inner/item") == (
        '"all";q=100;w=60, "outer";q=5;w=60, '
        '"GET /outer/inner/item";q=4;w=60, "GET /outer/inner/item (2)";q=3;w=60'
    )
    assert policy(app, "/outer/list") == '"all";q=100;w=60, "outer";q=5;w=60'
    assert policy(app, "/") == '"all";q=100;w=60, "GET /";q=9;w=60'
    assert policy(app, "/outer/inner/free") is None
    assert policy(app, "/health") is None
    assert get(app, "/outer/list", 4) == [200, 200, 200, 429]  # the routes of the name "outer" share a counter


def test_one_limit_in_several_places_counts_once() -> None:
    shared = limit("100/minute", name="all")
    app, api, five = make_app(limits=[shared]), Blueprint("api", __name__), limit("5/minute")
    five(api)
    shared(api)

    class Twice(MethodView):
        @five
        @limit("100/minute", name="all")
        def get(self) -> str:
            return "twice"

    api.add_url_rule("/class", view_func=five(Twice).as_view("twice"))
    api.add_url_rule("/view", "view", five(five(lambda: "view")))
    app.register_blueprint(api)
    for number, path in ((1, "/class"), (2, "/view")):
        reply = app.test_client().get(path)
        assert reply.headers["RateLimit-Policy"] == f'"all";q=100;w=60, "GET {path}";q=5;w=60'
        assert f'"all";r={100 - number};' in reply.headers["RateLimit"]


def test_a_key_function_reads_the_current_user() -> None:
    app = Flask(__name__)

    @app.before_request
    def log_in() -> None:
        g.user = request.headers.get("X-User")

    RateLimiter(app, clock=ManualClock(), user=lambda request: g.user)

    @app.get("/function")
    @limit("1/minute", key=lambda request: g.user)
    def by_function() -> str:
        return "function"

    @app.get("/attribute")
    @limit("1/minute", key="user", missing="deny")
    def by_attribute() -> str:
        return "attribute"

    for path in ("/function", "/attribute"):
        assert get(app, path, 2, headers={"X-User": "ann"}) == [200, 429]
        assert get(app, path, 2, headers={"X-User": "bob"}) == [200, 429]
    assert get(app, "/function", 3) == [200, 200, 200]
    assert get(app, "/attribute") == [429]


def test_limits_by_path_parameters_and_cost() -> None:
    app = make_app()

    @app.get("/rooms/<room>/<path:rest>")
    @limit("5/minute", key="param.room", cost=lambda request: int(request.args["units"]))
    def room(room: str, rest: str) -> str:
        return room

    assert get(app, "/rooms/a/x/y?units=5") == [200]
    assert get(app, "/rooms/a/x?units=1") == [429]
    assert get(app, "/rooms/b/x?units=1") == [200]
    assert policy(app, "/rooms/c/x?units=1") == '"GET /rooms/{room}/{rest...}";q=5;w=60'


def test_a_rulebook_and_code_are_one_decision() -> None:
    book = {
        "rules": [
            {"name": "all", "limit": "9/minute", "key": "address"},
            {"name": "items", "limit": "2/minute", "when": {"route": "/items/{id}"}, "key": "address"},
        ]
    }
    app = make_app(rules=book)

    @app.get("/items/<int:id>")
    @limit("1/minute", key="param.id")
    def item(id: int) -> str:  # noqa: A002
        assert len(g.headgate.decisions) == 1
        assert g.headgate.decision.atomic
        return str(id)

    assert get(app, "/items/1", 2) == [200, 429]
    assert get(app, "/items/2", 1) == [200]
    assert get(app, "/items/3", 1) == [429]
    assert '"all";r=6' in app.test_client().get("/none").headers["RateLimit"]  # no refusal was counted


def test_error_handlers_answer_refusals_and_keep_the_fields() -> None:
    app = make_app(limits=[limit("1/minute")])

    @app.errorhandler(429)
    def slow_down(error: HTTPException) -> ResponseReturnValue:
        assert isinstance(error, RateLimitExceeded)
        return {"wait": error.decision.retry_after}, 429

    get(app)
    reply = app.test_client().get("/")
    assert (reply.status_code, reply.json) == (429, {"wait": 60.0})
    assert (reply.headers["Retry-After"], reply.headers["RateLimit"]) == ("60", '"app";r=0;t=60')


def test_handlers_do_not_replace_the_answer_of_a_rule_nor_a_503() -> None:
    app = make_app(limits=[limit("1/minute", refuse={"status": 403, "body": "banned"})])
    app.register_error_handler(429, lambda error: ("handled", 429))
    app.register_error_handler(403, lambda error: ("handled", 403))
    get(app)
    assert app.test_client().get("/").get_data(as_text=True) == "banned"
    down = Flask(__name__)
    RateLimiter(down, engine="redis://127.0.0.1:1/0", limits=[limit("1/minute")])
    assert get(down) == [503]
    down.extensions["headgate"].limits.close()


def test_refusals_without_a_handler_follow_accept() -> None:
    app = make_app(limits=[limit("1/minute")])
    get(app)
    client = app.test_client()
    assert client.get("/", headers={"Accept": "application/json"}).mimetype == "application/problem+json"
    assert client.get("/", headers={"Accept": "text/html"}).mimetype == "text/html"
    assert client.get("/").mimetype == "application/problem+json"
    sentence = client.get("/", headers={"Accept": "text/plain"}).get_data(as_text=True)
    assert sentence == "Too many requests. Try again in 60 seconds.\n"


@pytest.mark.parametrize("kind", THREADED)
def test_only_failures_count(kind: str) -> None:
    app = make_app()

    @app.post("/login")
    @limit("2/minute", refund="2xx, 3xx")
    def login() -> ResponseReturnValue:
        return ("welcome", 200) if request.form.get("password") == "right" else ("wrong", 401)

    seen: list[Response] = []

    def is_free(response: Response) -> bool:
        seen.append(response)
        return "X-Free" in response.headers

    @app.get("/stream")
    @limit("1/minute", refund=is_free)
    def streamed() -> ResponseReturnValue:
        return Response(iter(["a", "b"]), headers={"X-Free": "yes"})

    with serve(kind, app) as client:
        statuses = [client.post("/login", data={"password": "right"}).status_code for _ in range(9)]
        statuses += [client.post("/login").status_code for _ in range(3)]
        assert statuses == [200] * 9 + [401, 401, 429]
        assert [client.get("/stream").text for _ in range(3)] == ["ab"] * 3
    assert [type(each) for each in seen] == [Response] * 3


@pytest.mark.parametrize("body", ["", "body"])
def test_refunds_do_not_wait_until_the_body_is_read(body: str) -> None:
    app = make_app()
    app.add_url_rule("/", "view", limit("1/minute", refund="2xx")(lambda: body))

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None, /) -> Callable[[bytes], object]:
        return len

    unread = [app.wsgi_app(EnvironBuilder().get_environ(), start) for _ in range(2)]
    assert get(app, "/", 2) == [200, 200]
    assert [b"".join(each).decode() for each in unread] == [body, body]


def test_exceptions_are_refunded_as_500_and_reach_the_test() -> None:
    app = make_app()
    app.testing = True
    seen: list[int] = []

    def always(response: Response) -> bool:
        seen.append(response.status_code)
        return True

    @app.get("/")
    @limit("1/minute", refund=always)
    def fail() -> str:
        raise KeyError("in a test")

    for _ in range(3):
        with pytest.raises(KeyError):
            get(app)
    assert seen == [500] * 3


def test_slots_are_held_while_a_stream_runs() -> None:
    app = make_app()

    @app.get("/stream")
    @limit("1 slots", key=None, name="streams")
    def streamed() -> ResponseReturnValue:
        return Response(iter(["a", "b"]))

    first = app.test_client().get("/stream", buffered=False)
    assert get(app, "/stream") == [429]
    first.close()
    assert get(app, "/stream", 2) == [200, 200]


def hide(view: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: view(*args, **kwargs)


def show(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def call(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return call


def test_limits_do_not_vanish_below_other_decorators() -> None:
    app = make_app(limits=[limit("100/minute")])

    @limit("9/minute")
    @limit("1/minute", key=None)
    def view() -> str:
        return "view"

    app.add_url_rule("/hidden", "hidden", hide(view))
    app.add_url_rule("/shown", "shown", show(view))
    assert get(app, "/shown", 2) == [200, 429]
    assert get(app, "/hidden", 3) == [200, 429, 429]
    assert '"app";r=97' in app.test_client().get("/none").headers["RateLimit"]  # refusals gave it back
    assert view() == "view"  # outside of a request nothing is limited


def test_automatic_options_are_no_calls_of_the_view() -> None:
    app = make_app(limits=[limit("100/minute")])
    app.add_url_rule("/", "view", limit("1/minute")(lambda: "view"))
    assert policy(app, method="OPTIONS") == '"app";q=100;w=60'
    assert get(app, "/", 2, method="HEAD") == [200, 429]


def test_limits_that_can_never_match_fail_where_the_route_is_added() -> None:
    app = make_app()
    here = __file__

    with pytest.raises(InvalidRule, match=rf"{here}:\d+: The limit 5/s of GET /items/\{{id\}} can never match: "):

        @app.get("/items/<int:id>")
        @limit("5/s", key="param.item")
        def item(id: int) -> str:  # noqa: A002
            return str(id)

    bare, later = Flask(__name__), Blueprint("later", __name__)
    limit("5/s", key="user", missing="skip")(later)
    later.add_url_rule("/later", "view", lambda: "")
    bare.register_blueprint(later)
    with pytest.raises(InvalidRule, match=r"GET /later can never match: nobody supplies the attribute user"):
        RateLimiter(bare)


def test_a_limit_above_its_route_is_an_error() -> None:
    app = make_app()

    @limit("5/s")
    @app.get("/above")
    def above() -> str:
        return "above"

    limiter = app.extensions["headgate"]
    with pytest.raises(InvalidRule, match=r"The limit 5/s of GET /above can never match: it is written above"):
        limiter.check()
    app.config["PROPAGATE_EXCEPTIONS"] = False
    assert get(app, "/above", 2) == [500, 500]


def test_rules_that_match_no_route(caplog: pytest.LogCaptureFixture) -> None:
    book = {"rules": [{"name": "gone", "limit": "1/s", "when": {"path": "/gone"}}]}
    app = make_app(rules=book)
    app.add_url_rule("/here", "here", lambda: "here")
    assert get(app, "/here", 2) == [200, 200]
    assert caplog.text.count('rule "gone": No route of the application matches') == 1
    limiter = RateLimiter(rules=book, strict=True)
    strict = Flask(__name__)
    limiter.init_app(strict)
    with pytest.raises(InvalidRulebook):
        limiter.check_routes(strict)


def test_an_app_without_the_extension_says_so() -> None:
    app = Flask(__name__)
    app.testing = True
    app.add_url_rule("/", "view", limit("1/s")(lambda: ""))
    with pytest.raises(InvalidSetting, match=r"write RateLimiter\(app\)"):
        get(app)


def test_the_configuration_wins_and_unknown_settings_are_errors() -> None:
    app = Flask(__name__)
    app.config.update(
        HEADGATE_DEFAULT_LIMITS=["2/minute"], HEADGATE_LIMITS="9/minute", HEADGATE_HEADERS="draft-11"
    )
    limiter = RateLimiter(default_limits=[limit("1/minute")], clock=ManualClock())
    limiter.init_app(app)
    app.add_url_rule("/", "view", lambda: "")
    assert policy(app) == '"app";q=9;w=60, "GET /";q=2;w=60'
    with pytest.raises(InvalidSetting, match="one RateLimiter"):
        limiter.init_app(app)
    other = Flask(__name__)
    other.config["HEADGATE_ENGIN"] = "memory://"
    with pytest.raises(InvalidSetting, match=r"HEADGATE_ENGIN is not .* HEADGATE_ENGINE\?"):
        limiter.init_app(other)


def test_limits_are_switched_off_for_tests() -> None:
    app = make_app(limits=[limit("1/minute")])
    app.add_url_rule("/", "view", limit("1/minute")(lambda: ""))
    app.add_url_rule("/hidden", "hidden", hide(limit("1/minute")(lambda: "")))
    app.config["HEADGATE_ENABLED"] = False
    assert get(app, "/", 3) == get(app, "/hidden", 3) == [200] * 3
    assert policy(app) is None
    app.config["HEADGATE_ENABLED"] = True
    assert get(app, "/", 2) == [200, 429]


@pytest.mark.parametrize("enabled", ["false", "0", 0, None])
def test_enabled_is_true_or_false(enabled: Any) -> None:
    app = Flask(__name__)
    app.config["HEADGATE_ENABLED"] = enabled
    with pytest.raises(InvalidSetting, match="HEADGATE_ENABLED is True or False, not"):
        RateLimiter(app)


def test_proxies_by_headgate_or_by_werkzeug() -> None:
    def statuses(app: Flask) -> list[int]:
        app.add_url_rule("/", "view", lambda: "")
        lines = ("192.0.2.1", "192.0.2.2", "6.6.6.6, 192.0.2.1")
        return [get(app, headers={"X-Forwarded-For": line})[0] for line in lines]

    assert statuses(make_app(limits=[limit("1/minute")])) == [200, 429, 429]
    assert statuses(make_app(limits=[limit("1/minute")], trusted_proxies=["127.0.0.0/8"])) == [200, 200, 429]
    inside, outside = Flask("inside"), make_app(limits=[limit("1/minute")])
    inside.wsgi_app = ProxyFix(inside.wsgi_app)  # type: ignore[method-assign]
    RateLimiter(inside, limits=[limit("1/minute")], clock=ManualClock())
    outside.wsgi_app = ProxyFix(outside.wsgi_app)  # type: ignore[method-assign]
    assert statuses(inside) == statuses(outside) == [200, 200, 429]


def test_the_command_lists_every_route() -> None:
    book = {
        "rules": [
            {"name": "everything", "limit": "100/s"},
            {"name": "items", "limit": "5/s", "when": {"path": "/items/**", "method": "GET"}},
        ]
    }
    app = make_app(
        rules=book,
        limits=[limit("1000/hour", key=None)],
        default_limits=[limit("60/minute")],
        exempt=["/up", "/files/**", "/deep/*"],
    )
    for template in ("/up", "/files/<path:name>", "/deep/<path:name>"):
        app.add_url_rule(template, template, lambda name="": name)

    class Parcels(MethodView):
        @limit("2/s")
        def get(self) -> str:
            return ""

        @exempt
        def put(self) -> str:
            return ""

    @app.get("/items/<int:id>")
    @limit("5/s; 100/day", key=["address/24", "param.id"], missing="one")
    @limit("9/s", key=lambda request: "x", name="function")
    def item(id: int) -> str:  # noqa: A002
        return ""

    app.add_url_rule("/health", "health", exempt(lambda: ""))
    app.add_url_rule("/orders", view_func=Parcels.as_view("orders"))
    app.add_url_rule("/items", "make", lambda: "", methods=["POST"])
    result = app.test_cli_runner().invoke(args=["headgate", "limits"])
    lines = [line.partition("  tests/")[0] for line in result.output.splitlines()]
    assert lines == [
        "all requests together",
        "    1000/hour",
        "exempt paths",
        "    /up, /files/**, /deep/*",
        "GET /deep/{name...}",
        "    60/minute by address",
        "    rules: everything",
        "GET /files/{name...}",
        "    exempt",
        "GET /health",
        "    exempt",
        "POST /items",
        "    60/minute by address",
        "    rules: everything",
        "GET /items/{id}",
        "    5/s; 100/day by address/24, param.id",
        '    9/s by a function "function"',
        "    rules: everything, items",
        "GET|PUT /orders",
        "    rules: everything",
        "    PUT is exempt",
        "GET /orders",
        "    2/s by address",
        "GET /static/{filename...}",
        "    60/minute by address",
        "    rules: everything",
        "GET /up",
        "    exempt",
    ]
    assert "tests/integrations/test_flask.py:" in result.output


@pytest.fixture
def redis_apps(redis_server: RedisServer) -> Iterator[list[Flask]]:
    """Two processes of one application, say."""
    apps = []
    for _ in range(2):
        app = Flask(__name__)
        RateLimiter(app, engine=redis_server.url)
        app.add_url_rule("/", "view", limit("3/hour")(lambda: "view"))
        apps.append(app)
    yield apps
    for app in apps:
        app.extensions["headgate"].limits.close()


def test_processes_share_a_limit_by_redis(redis_apps: list[Flask]) -> None:
    with serve("werkzeug", redis_apps[0]) as one, serve("waitress", redis_apps[1]) as two:
        statuses = [client.get("/").status_code for client in (one, two, one, two, one)]
    assert statuses == [200, 200, 200, 429, 429]
