"""Keys of clients, for limits: the user who is logged in, or the address."""

from __future__ import annotations

import asyncio
from typing import Any

from headgate.integrations.django.http_requests import (
    authenticated_user,
    http_request,
    in_event_loop,
    request_parts,
)
from headgate.integrations.django.project_limits import application_limits
from headgate.integrations.request_parts import PartsReader
from headgate.integrations.shared_address import SharedAddressAlarm
from headgate.rules.ip_networks import network_of


def client_address(request: Any) -> str:
    """Returns the client's address, by the trusted proxies of HEADGATE; empty if it has none."""
    proxies = application_limits().sync.proxies
    reader = PartsReader(["address"], proxies, SharedAddressAlarm())
    return reader(request_parts(http_request(request))).get("address", "")


def user_or_address(request: Any) -> Any:
    """Is a key: the user who is logged in, or else the address, IPv6 by its /64."""
    if in_event_loop():
        return _user_or_address_async(request)
    return _user_or_address(authenticated_user(request), request)


async def _user_or_address_async(request: Any) -> str:
    user = authenticated_user(request)
    return _user_or_address(await user if asyncio.iscoroutine(user) else user, request)


def _user_or_address(user: Any, request: Any) -> str:
    if user is not None:
        return f"user {user}"
    address = client_address(request)
    return f"address {network_of(address, 32, 64) or address}"
