"""Draws bytes for the HTTP port: nearly valid requests, pipelined, smuggled, endless, or of another protocol."""

import re
from random import Random

from tests.fuzz import http2_frame_builder
from tests.fuzz.connections import exchange
from tests.fuzz.mutate import INTERESTING, mutate_bytes
from tests.service.service_harness import Service

BODY = b'{"attributes": {"user": "ann"}}'
PATHS = [
    *(b"/v1/check", b"/v1/peek", b"/v1/checks", b"/v1/reserve", b"/v1/refund", b"/v1/settle", b"/v1/cancel"),
    *(b"/v1/renew", b"/v1/release", b"/auth/nginx", b"/auth/forward", b"/auth/envoy", b"/auth/envoy/a/b?c",
      b"/json"),
    *(b"/healthz", b"/readyz", b"/openapi.json", b"/", b"*", b"//", b"/v1/%63heck", b"/v1/check%00", b"/%ff%fe",
      b"/..%2f.."),
    *(b"http://h/v1/check", b"https://a:b@h:99999/v1/check", b"h:443", b"/v1/check?" + b"q" * 3000,
      b"/" + b"p" * 9000),
]  # fmt: skip
METHODS = [b"POST"] * 8 + [
    b"GET",
    b"HEAD",
    b"PUT",
    b"OPTIONS",
    b"CONNECT",
    b"TRACE",
    b"PRI",
    b"get",
    b"X" * 300,
    b"M-SEARCH",
]
LENGTHS = [
    *(b"%d" % len(BODY), b"0" * 4400 + b"%d" % len(BODY), b"0", b"-1", b"+5", b"5, 5", b"5,6", b"1e3", b"0x1f",
      b" 31 "),
    *(b"\xb2", b"18446744073709551615", b"18446744073709551616", b"99999999", b"", b"31\t"),
]  # fmt: skip
CODINGS = [
    b"chunked",
    b"Chunked",
    b"xchunked",
    b"chunked, chunked",
    b"gzip, chunked",
    b"chunked, gzip",
    b"identity",
    b"\x0bchunked",
]
CHUNKS = [
    *(b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY), b"%X;a=b\r\n%s\r\n0\r\nt: 1\r\n\r\n" % (len(BODY), BODY)),
    *(b"%x\n%s\n0\n\n" % (len(BODY), BODY), b"zz\r\nabc\r\n", b"-1\r\n\r\n", b"ffffffffffffffff\r\nabc\r\n",
      b"5\r\nabc", b"0\r\n"),
    *(b"1;" + b"e" * 20_000 + b"\r\nx\r\n0\r\n\r\n", b"1\r\nx\r\n" * 3000 + b"0\r\n\r\n",
      b"0\r\n" + b"t: 1\r\n" * 3000 + b"\r\n"),
]  # fmt: skip
FIELDS = [
    *(b"expect: 100-continue", b"expect: 200-maybe", b"connection: close",
      b"connection: upgrade\r\nupgrade: h2c\r\nhttp2-settings: AAAA"),
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"sec-websocket-version: 13",
    *(b"host: a\r\nhost: b", b"x: " + b"v" * 70_000, b"y: 1\r\n" * 200 + b"y: 2", b" folded: 1", b"x: a\r\n b",
      b": empty", b"no colon"),
    *(b"x\x00y: 1", b"x: a\x00b", b"\xe4: \xe4", b"x : 1", b"x-forwarded-for: 192.0.2.1",
      b"accept: " + b"a/b;q=0." + b"9" * 5000),
]  # fmt: skip
WRONG = re.compile(rb"HTTP/1\.[01] (5\d\d) ")


class RawRequests:
    """Draws bytes for the HTTP port."""

    def __init__(self, service: Service) -> None:
        self._port = service.port

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def make(self, rng: Random) -> list[bytes]:
        match rng.randrange(12):
            case 0:
                return [rng.randbytes(rng.choice((1, 10, 1000)))]
            case 1 | 2:
                whole = http2_frame_builder.request_frames(rng.choice(PATHS), BODY, method=rng.choice(METHODS))
                return http2_frame_builder.break_frames(rng, whole)
            case 3:
                return [http2_frame_builder.PREFACE[: rng.randrange(25)] + rng.randbytes(rng.randrange(20))]
            case 4:
                return [b"".join(_request(rng) for _ in range(rng.randint(2, 20)))]
            case 5:
                return [_smuggled(rng)]
            case 6:
                return [rng.choice(INTERESTING) * rng.choice((1, 100)) + _request(rng)]
            case 7:
                data = _request(rng)
                step = max(1, len(data) // rng.randint(2, 6))
                return [data[at : at + step] for at in range(0, len(data), step)]
        return [mutate_bytes(rng, _request(rng))]

    async def send(self, made: list[bytes]) -> str | None:
        pause = 0.002 if len(made) > 1 else 0
        back = await exchange("127.0.0.1", self._port, made, pause=pause)
        wrong = WRONG.search(back)
        return f"it answered {back[wrong.start() : wrong.start() + 600]!r}" if wrong else None


def _request(rng: Random) -> bytes:
    lines = [
        b" ".join(
            (
                rng.choice(METHODS),
                rng.choice(PATHS),
                rng.choice((b"HTTP/1.1",) * 9 + (b"HTTP/1.0", b"HTTP/3.0", b"")),
            )
        )
    ]
    lines += [b"host: h"] * rng.choice((0, 1, 1, 1, 1, 1))
    lines += rng.sample(FIELDS, rng.choice((0, 0, 1, 2)))
    if rng.random() < 0.2:
        return b"\r\n".join([*lines, b"transfer-encoding: " + rng.choice(CODINGS[:2]), b"", rng.choice(CHUNKS)])
    length = b"%d" % len(BODY) if rng.random() < 0.7 else rng.choice(LENGTHS)
    return b"\r\n".join([*lines, b"content-length: " + length, b"", BODY])


def _smuggled(rng: Random) -> bytes:
    """Two lengths, or a length and a coding, with another request in what one of them takes for the body."""
    inner = rng.choice(CHUNKS) + b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n"
    fields = [b"host: h", b"content-length: " + rng.choice((b"%d" % len(inner), *LENGTHS))]
    fields += rng.choice(
        ([b"transfer-encoding: " + rng.choice(CODINGS)], [b"content-length: " + rng.choice(LENGTHS)])
    )
    rng.shuffle(fields)
    return b"\r\n".join([b"POST /v1/check HTTP/1.1", *fields, b"", inner])
