"""Mutates valid inputs: bytes by flips, cuts and repeats; documents by values of other types."""

import json
from random import Random
from typing import Any

INTERESTING = [
    *(
        b"\x00",
        b"\xff",
        b"\xff" * 10,
        b"\x80" * 10,
        b"\r\n",
        b"\n",
        b"\r\n\r\n",
        b"%00",
        b"%",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
    ),
    *(b"0", b"-1", b"4294967295", b"9223372036854775808", b"9" * 400, b"0" * 4400, b"1e400", b"NaN", b"{", b'"'),
]
NUMBERS: list[Any] = [
    *(0, -1, 1, 3.0, 3.5, -0.0, 2**31, 2**32, 2**53 - 1, 2**53, 2**53 + 1, 2**63, 2**64, 10**40, 1e308, 1e-308),
    *(float("inf"), float("nan")),
]
TEXTS = [
    *("", " ", "\0", "\x7f", "a\r\nb: c", "ä", "☃", "\U0001f600", "\ud800", "\udfff\ud800", "\ufeff", "%00",
      "%ff", "../..", "|", "="),
    *("a|b=c", "{}", "~receipts", "__proto__", "x" * 255, "y" * 257, "z" * 8192, "z" * 8193, "é" * 8192,
      "1" * 5000),
    *("user", "path", "address", "192.0.2.1", "::1", "999.1.1.1", "2001:db8::/32", "fe80::1%eth0", "[::1]:5",
      "/a/../b//c"),
]  # fmt: skip


def mutate_bytes(rng: Random, data: bytes, times: int = 4) -> bytes:
    """The same with a few changes; sometimes with none."""
    out = bytearray(data)
    for _ in range(rng.randint(0, times)):
        at = rng.randrange(len(out) + 1)
        end = min(len(out), at + rng.choice((1, 1, 2, 4, 16, 64)))
        match rng.randrange(8):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1 if out:
                out[at % len(out)] = rng.randrange(256)
            case 2:
                del out[at:end]
            case 3:
                out[at:at] = rng.choice(INTERESTING)
            case 4:
                out[at:end] = rng.choice(INTERESTING)
            case 5:
                out[at:at] = out[at:end] * rng.choice((1, 2, 50))
            case 6:
                out[at:at] = rng.randbytes(rng.choice((1, 3, 30)))
            case _ if rng.random() < 0.2:
                del out[at:]
    return bytes(out)


def random_json(rng: Random, depth: int = 3) -> Any:
    """Some value of JSON."""
    match rng.randrange(8 if depth else 6):
        case 0 | 1:
            return rng.choice(TEXTS)
        case 2 | 3:
            return rng.choice(NUMBERS)
        case 4:
            return rng.choice((True, False, None))
        case 5:
            return rng.randint(-(2**70), 2**70)
        case 6:
            return [random_json(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(TEXTS): random_json(rng, depth - 1) for _ in range(rng.randrange(4))}


def mutate_json(rng: Random, value: Any) -> Any:
    """A document with one thing in it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        made = dict(value)
        match rng.randrange(10):
            case 0:
                del made[name]
            case 1:
                made[rng.choice(TEXTS)] = random_json(rng)
            case 2:
                made[name[:-1] or "x"] = made.pop(name)
            case 3:
                made |= {f"a{number}": number for number in range(rng.choice((3, 255, 257)))}
            case _:
                made[name] = mutate_json(rng, value[name])
        return made
    if isinstance(value, list) and value and rng.random() < 0.85:
        many = list(value)
        at = rng.randrange(len(many))
        match rng.randrange(6):
            case 0:
                del many[at]
            case 1:
                many = many * rng.choice((2, 101))
            case _:
                many[at] = mutate_json(rng, many[at])
        return many
    return random_json(rng)


def mutated_document(rng: Random, valid: Any) -> bytes:
    """JSON that was valid once."""
    value = valid
    for _ in range(rng.randrange(3)):
        value = mutate_json(rng, value)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.7)
    data = text.encode("utf-8", "surrogatepass")
    match rng.randrange(12):
        case 0 | 1:
            return mutate_bytes(rng, data)
        case 2:
            return b"[" * rng.choice((10, 1000, 60_000))
        case 3:
            return b'{"attributes":' * rng.choice((10, 4000)) + data
        case 4:
            return rng.randbytes(rng.randrange(100))
    return data
