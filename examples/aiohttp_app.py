"""A shop in aiohttp, with limits per application, route and view.

    pip install 'headgate[aiohttp]'
    python -m aiohttp.web -P 8000 examples.aiohttp_app:make_app
    curl -i localhost:8000/items/7

Without ENGINE it counts in memory, which is right for one process. For several:

    ENGINE=redis://localhost:6379/0 python -m aiohttp.web -P 8000 examples.aiohttp_app:make_app
"""

import os

from aiohttp import web

from headgate.integrations.aiohttp import RECORD, exempt, limit, rate_limits

routes = web.RouteTableDef()


async def user_of(request: web.Request) -> str | None:
    """Returns the user's name; a real application reads its session or token."""
    return request.headers.get("x-user")


@routes.view(r"/items/{item:\d+}")
@limit("20/minute")
class Item(web.View):
    async def get(self) -> web.Response:
        return web.json_response({"item": int(self.request.match_info["item"])})

    @limit("2/minute")
    async def delete(self) -> web.Response:
        return web.Response(status=204)


@routes.post(r"/items/{item:\d+}/orders")
@limit("3/minute; 50/day", key=["user", "param.item"], missing="deny")
async def order(request: web.Request) -> web.Response:
    return web.json_response({"order": f"item {request.match_info['item']}"})


@routes.post("/login")
@limit("5/hour", refund="2xx")  # only failures count
async def login(request: web.Request) -> web.Response:
    if request.query.get("password") != "open sesame":
        raise web.HTTPUnauthorized(text="Wrong password.")
    return web.json_response({"token": "..."})


@routes.get("/report")
@limit("2 slots", key=None)  # two at a time, of all users, until the last line is sent
async def report(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"item,sold\n")
    await response.write(b"7,42\n")
    return response


@routes.get("/health")
@exempt
async def health(request: web.Request) -> web.Response:
    return web.json_response({"ok": True})


@routes.get("/remaining")
async def remaining(request: web.Request) -> web.Response:
    decision = request[RECORD].decision
    return web.json_response({"remaining": None if decision is None else decision.remaining})


@routes.get("/chat")
async def chat(request: web.Request) -> web.WebSocketResponse:
    websocket = web.WebSocketResponse()
    await websocket.prepare(request)
    async for message in websocket:
        await websocket.send_str(str(message.data))
    return websocket


def make_app(arguments: list[str] | None = None) -> web.Application:
    """Returns the application, as python -m aiohttp.web wants it."""
    app = web.Application()
    app.add_routes(routes)
    rate_limits(
        app,
        engine=os.environ.get("ENGINE", "memory://"),
        limits=[limit("100/minute")],  # all requests of one client
        messages=[limit("5/s burst 10")],
        user=user_of,
        trusted_proxies=["10.0.0.0/8"],
    )
    return app
