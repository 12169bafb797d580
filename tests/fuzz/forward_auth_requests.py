"""Draws hostile sub-requests of gateways: header fields that lie, repeat, overflow, or are no text."""

from random import Random

from tests.fuzz.connections import ReopeningConnection
from tests.fuzz.mutate import TEXTS, mutate_bytes
from tests.service.service_harness import Service

USUAL = {
    b"x-original-method": b"GET",
    b"x-original-uri": b"/smooth/7?a=b",
    b"x-original-host": b"shop.example",
    b"x-forwarded-method": b"POST",
    b"x-forwarded-uri": b"/closed",
    b"x-forwarded-host": b"shop.example",
    b"x-forwarded-for": b"192.0.2.7, 127.0.0.1",
    b"host": b"shop.example:8080",
}
CLIENT_FIELDS = [
    b"cookie",
    b"user-agent",
    b"accept",
    b"x-user",
    b"authorization",
    b"forwarded",
    b"x_forwarded_for",
    b"X-Real-IP",
]
PATHS = [
    *(b"/auth/nginx", b"/auth/forward", b"/auth/envoy", b"/auth/envoy/", b"/auth/envoy/slow",
      b"/auth/envoy/held/1?x=%00"),
    *(b"/auth/envoy/%ff%00%0d%0a", b"/auth/envoy//..//%2e%2e/closed", b"/auth/envoy/" + b"%C3%A4" * 300,
      b"/auth/nginx?" + b"&" * 2000),
]  # fmt: skip
VALUES = [
    *(b"", b" ", b"\t", b"\xff\xfe", b"\xc3\xa4", b"%00", b"a" * 9000, b",", b",,,,", b"::1",
      b"[::1]:5, 1.2.3.4", b"256.1.1.1", b"unknown"),
    *(b"192.0.2.1," * 700, b"fe80::1%eth0", b"http://h:x/y", b"/%zz", b"//h/p", b"*", b"?", b"#",
      b"sid=1; sid=2", b"sid=1,sid=2", b"=;=;"),
    *(b"a=b;" * 1500, b"text/html;q=1.0.0, */*;q=x", b"application/json;q=" + b"9" * 5000, b"GET POST", b"\x7f",
      b"0" * 5000, b"1" * 5000),
    *(text.encode("utf-8", "surrogatepass").replace(b"\r\n", b"").replace(b"\0", b"") for text in TEXTS),
]  # fmt: skip


class ForwardAuthRequests:
    """/auth/*."""

    def __init__(self, service: Service) -> None:
        self._line = ReopeningConnection("127.0.0.1", service.port)

    async def open(self) -> None: ...

    async def close(self) -> None:
        self._line.close()

    def make(self, rng: Random) -> bytes:
        fields = [pair for pair in USUAL.items() if rng.random() < 0.93]
        for _ in range(rng.randrange(5)):
            if fields and rng.random() < 0.6:
                at = rng.randrange(len(fields))
                fields[at] = fields[at][0], rng.choice(VALUES)
            else:
                fields.append((rng.choice([*CLIENT_FIELDS, *USUAL]), rng.choice(VALUES)))
        rng.shuffle(fields)
        lines = [rng.choice((b"GET", b"POST", b"BREW")) + b" " + rng.choice(PATHS) + b" HTTP/1.1"]
        # A method with a body that does not come would be waited for, and is no fault.
        data = b"\r\n".join(
            [*lines, *(name + b": " + value for name, value in fields), b"connection: close", b"", b""]
        )
        return data if rng.random() < 0.9 else mutate_bytes(rng, data[:-4], 1).rstrip() + b"\r\n\r\n"

    async def send(self, made: bytes) -> str | None:
        reply = await self._line.send_request(made)
        self._line.close()
        if reply is None:
            return None  # spoilt so that it was no request
        return (
            None if 200 <= reply.status < 500 else f"it answered {reply.status}: {reply.head + reply.body[:300]!r}"
        )
