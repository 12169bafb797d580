"""A shop in FastAPI, with limits per application, router, route and WebSocket.

    pip install 'headgate[fastapi]' uvicorn
    uvicorn examples.fastapi_app:app
    curl -i localhost:8000/items/7

Without ENGINE it counts in memory, which is right for one process. For several:

    ENGINE=redis://localhost:6379/0 uvicorn examples.fastapi_app:app --workers 4
"""

import os

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, WebSocket

from headgate.integrations.fastapi import exempt, limit, rate_limits


async def user_of(request: Request) -> str | None:
    """Returns the user's name; a real application reads its session or token."""
    return request.headers.get("x-user")


app = FastAPI(title="A shop")
rate_limits(
    app,
    engine=os.environ.get("ENGINE", "memory://"),
    limits=[limit("100/minute", key="address")],  # all requests of one client
    messages=[limit("5/s burst 10", key="address")],
    user=user_of,
    trusted_proxies=["10.0.0.0/8"],
)

# Every route of this router counts by itself: 20 requests of each per minute.
items = APIRouter(prefix="/items", dependencies=[Depends(limit("20/minute", key="address"))])


@items.get("/{item}")
async def show(item: int) -> dict[str, int]:
    return {"item": item}


@items.post("/{item}/orders")
@limit("3/minute; 50/day", key=["user", "param.item"], missing="deny")
async def order(item: int) -> dict[str, str]:
    return {"order": f"item {item}"}


app.include_router(items)


@app.post("/login")
@limit("5/hour", key="address", refund="2xx")  # only failures count
async def login(password: str) -> dict[str, str]:
    if password != "open sesame":
        raise HTTPException(401, "Wrong password.")
    return {"token": "..."}


@app.get("/report")
@limit("2 slots", key=None)  # two at a time, of all users
async def report() -> dict[str, int]:
    return {"sold": 42}


@app.get("/health")
@exempt
async def health() -> dict[str, bool]:
    return {"ok": True}


@app.get("/remaining")
async def remaining(request: Request) -> dict[str, int | None]:
    decision = request.state.headgate.decision
    return {"remaining": None if decision is None else decision.remaining}


@app.websocket("/chat")
async def chat(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)
