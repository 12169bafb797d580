"""Applications that are mounted in others, also under a path with parameters: their limits hold, and are named by
the template."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request
from litestar import Litestar, get
from quart import Quart
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from headgate.integrations import fastapi
from headgate.integrations.asgi import RateLimitMiddleware, limit
from headgate.integrations.fastapi import rate_limits
from tests.integrations.server_harness import limit_fields, serve_to_client


def statuses(client: Any, *paths: str) -> list[int]:
    return [client.get(path).status_code for path in paths]


def _tenant_app() -> FastAPI:
    """An application whose limits count each tenant by itself, and all of them together."""
    app = FastAPI()
    tenant_limit = fastapi.limit("2/hour", key="param.tenant")

    @app.get("/items/{item}", dependencies=[Depends(tenant_limit), Depends(fastapi.limit("4/hour"))])
    async def read(request: Request, item: int) -> str:
        return f"{request.path_params['tenant']} {item}"

    return app


def test_limits_under_a_mount_with_parameters_go_by_its_template() -> None:
    app, tenant = FastAPI(), _tenant_app()
    limits = rate_limits(app)
    app.mount("/tenants/{tenant}", tenant)
    with serve_to_client(app) as client:
        response = client.get("/tenants/acme/items/1")
        assert response.json() == "acme 1"
        assert response.headers["ratelimit-policy"] == (
            '"GET /tenants/{tenant}/items/{item}";q=2;w=3600, "GET /tenants/{tenant}/items/{item} (2)";q=4;w=3600'
        )
        assert statuses(client, "/tenants/acme/items/2", "/tenants/acme/items/1") == [200, 429]
        assert statuses(client, *(f"/tenants/t{number}/items/1" for number in range(4))) == [200, 200, 429, 429]
        refused = client.get("/tenants/t9/items/1", headers={"Accept": "application/json"})
        assert refused.json()["violated-policies"] == ["GET /tenants/{tenant}/items/{item} (2)"]
    assert set(limits._code_rules) == {
        "GET /tenants/{tenant}/items/{item}",
        "GET /tenants/{tenant}/items/{item} (2)",
    }, "another tenant is no other limit"


def test_mounts_in_mounts_and_one_application_in_two_places() -> None:
    app, area, tenant = FastAPI(), FastAPI(), _tenant_app()
    rate_limits(app)
    area.mount("/tenants/{tenant}", tenant)
    app.mount("/areas/{area:int}", area)
    app.mount("/old/{tenant}", tenant)
    with serve_to_client(app) as client:
        for path, template in (
            ("/areas/7/tenants/acme/items/1", "/areas/{area}/tenants/{tenant}/items/{item}"),
            ("/old/acme/items/1", "/old/{tenant}/items/{item}"),
        ):
            assert client.get(path).headers["ratelimit-policy"].startswith(f'"GET {template}";q=2;w=3600')
            assert statuses(client, path, path) == [200, 429]


def test_a_rulebook_knows_the_template_and_the_parameters_of_mounts(caplog: pytest.LogCaptureFixture) -> None:
    by_tenant = {"key": "param.tenant", "missing": "deny", "limit": "2/hour"}
    rules = [
        {"name": "items", "when": {"route": "/tenants/{tenant}/items/{item}"}, **by_tenant},
        {"name": "plain", "when": {"path": "/plain/**"}, **by_tenant},
    ]
    app = FastAPI()
    rate_limits(app, {"rules": rules}, strict=True)
    app.mount("/tenants/{tenant}", _tenant_app())
    app.mount("/plain/{tenant}", PlainTextResponse("plain"))
    with caplog.at_level(logging.WARNING, "headgate"), serve_to_client(app) as client:
        for path in ("/tenants/{}/items/1", "/plain/{}/any/thing"):
            acme, bolt = path.format("acme"), path.format("bolt")
            assert statuses(client, acme, acme, acme, bolt) == [200, 200, 429, 200]
    assert not caplog.records


def test_a_mounted_application_with_separate_limits_keeps_both() -> None:
    app, tenant = FastAPI(), _tenant_app()
    rate_limits(app, limits=[fastapi.limit("4/hour")])
    inner = rate_limits(tenant, limits=[fastapi.limit("9/hour", key="param.tenant", name="tenant")])
    app.mount("/tenants/{tenant}", tenant)
    with serve_to_client(app) as client:
        response = client.get("/tenants/acme/items/1")
        assert response.headers.get_list("ratelimit-policy") == [
            '"tenant";q=9;w=3600, "GET /items/{item}";q=2;w=3600, "GET /items/{item} (2)";q=4;w=3600',
            '"app";q=4;w=3600',
        ]
        assert statuses(client, "/tenants/acme/items/1", "/tenants/acme/items/1") == [200, 429]
        assert statuses(client, "/tenants/bolt/items/1", "/nowhere") == [200, 429], "the limit of the whole app"
    assert set(inner._code_rules) == {"tenant", "GET /items/{item}", "GET /items/{item} (2)"}


async def _hello(request: Any) -> Response:
    return PlainTextResponse("hello")


def _starlette() -> Any:
    return Starlette(routes=[Route("/hello", _hello)])


def _litestar() -> Any:
    @get("/hello")
    async def hello() -> str:
        return "hello"

    return Litestar([hello], openapi_config=None)


def _quart() -> Any:
    app = Quart(__name__)

    @app.get("/hello")
    async def hello() -> str:
        return "hello"

    return app


@pytest.mark.parametrize("make", [_starlette, _litestar, _quart])
def test_a_middleware_under_a_mount_knows_its_parameters(make: Any) -> None:
    """Litestar and Quart route by the path after the mount only in part; what matters here is the decision."""
    tenant = RateLimitMiddleware(make(), limits=[limit("2/hour", key="param.tenant")])
    app = RateLimitMiddleware(
        Starlette(routes=[Mount("/tenants/{tenant}", tenant), Route("/hello", _hello)]),
        limits=[limit("7/hour", name="outer")],
    )
    with serve_to_client(app) as client:
        acme, bolt = "/tenants/acme/hello", "/tenants/bolt/hello"
        passed = [client.get(path) for path in (acme, acme, bolt)]
        assert 429 not in [each.status_code for each in passed]
        assert [limit_fields(each)["ratelimit-policy"] for each in passed] == [
            '"app";q=2;w=3600, "outer";q=7;w=3600'
        ] * 3
        assert client.get(acme).status_code == 429
        assert limit_fields(client.get("/hello"))["ratelimit-policy"] == '"outer";q=7;w=3600'
        assert statuses(client, bolt, "/hello", "/hello") == [passed[2].status_code, 200, 429]
