"""Our tables against Envoy's own descriptors, and bytes that go from one side to the other."""

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, EnumDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.service.envoy import messages

# In Envoy since 1.38, and not yet in the package that we test against. Once it is, this line must go.
NEWER_THAN_THE_PACKAGE = {"RateLimitDescriptor.is_negative_hits"}

THEIR_MODULES = (
    "envoy.service.ratelimit.v3.rls_pb2",
    "envoy.service.rate_limit_quota.v3.rlqs_pb2",
)
TOP = ("RateLimitRequest", "RateLimitResponse", "RateLimitQuotaUsageReports", "RateLimitQuotaResponse")

for module in THEIR_MODULES:
    import_module(module)
THEIRS: Any = descriptor_pool.Default()

# Our messages, and the package of Envoy that has the original.
ORIGINS = {
    "RateLimitRequest": "envoy.service.ratelimit.v3",
    "RateLimitResponse": "envoy.service.ratelimit.v3",
    "RateLimitDescriptor": "envoy.extensions.common.ratelimit.v3",
    "HeaderValue": "envoy.config.core.v3",
    "RateLimitQuotaUsageReports": "envoy.service.rate_limit_quota.v3",
    "RateLimitQuotaResponse": "envoy.service.rate_limit_quota.v3",
    "BucketId": "envoy.service.rate_limit_quota.v3",
    "RateLimitStrategy": "envoy.type.v3",
    "RateLimitUnit": "envoy.type.v3",
    "TokenBucket": "envoy.type.v3",
}


def ours(name: str) -> Any:
    return messages.POOL.FindMessageTypeByName(f"{messages.PACKAGE}.{name}")


def their_name(name: str) -> str:
    """The full name of the original of something of ours."""
    return f"{ORIGINS[name.partition('.')[0]]}.{name}"


def theirs(name: str) -> Any:
    return THEIRS.FindMessageTypeByName(their_name(name))


def declared(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith(" ")]


def kind_of(field: Any) -> tuple[Any, ...]:
    """All that the wire and a reader can tell of a field."""
    oneof = field.containing_oneof and field.containing_oneof.name
    refers = field.message_type or field.enum_type
    name = refers and refers.full_name
    if name and name.startswith(messages.PACKAGE):
        name = their_name(name.removeprefix(f"{messages.PACKAGE}."))
    return field.number, field.type, field.is_repeated, field.has_presence, oneof, name


@pytest.mark.parametrize("name", declared(messages.MESSAGES))
def test_every_field_is_envoys(name: str) -> None:
    mine, other = ours(name), theirs(name)
    assert mine.full_name == f"{messages.PACKAGE}.{name}"
    for field in mine.fields:
        if f"{name}.{field.name}" in NEWER_THAN_THE_PACKAGE:
            assert field.name not in other.fields_by_name, "the package has it now: compare it too"
            assert field.number not in other.fields_by_number
        else:
            assert kind_of(field) == kind_of(other.fields_by_name[field.name])


@pytest.mark.parametrize("name", messages.ENUMS)
def test_every_enum_is_envoys(name: str) -> None:
    mine: EnumDescriptor = messages.POOL.FindEnumTypeByName(f"{messages.PACKAGE}.{name}")
    other = THEIRS.FindEnumTypeByName(their_name(name))
    assert {value.name: value.number for value in mine.values} == {v.name: v.number for v in other.values}


@pytest.mark.parametrize("name", TOP)
def test_nothing_is_left_out(name: str) -> None:
    """Envoy may add fields: then somebody should look whether they matter."""
    todo, seen = [ours(name)], set()
    while todo:
        mine = todo.pop()
        if mine.full_name in seen or mine.full_name.startswith("google."):
            continue
        seen.add(mine.full_name)
        short = mine.full_name.removeprefix(f"{messages.PACKAGE}.")
        missing = set(theirs(short).fields_by_name) - set(mine.fields_by_name)
        assert not missing, short
        todo += [field.message_type for field in mine.fields if field.message_type]


PLAIN: dict[int, st.SearchStrategy[Any]] = {
    4: st.integers(0, 2**64 - 1),
    8: st.booleans(),
    9: st.text(max_size=8),
    12: st.binary(max_size=8),
    13: st.integers(0, 2**32 - 1),
}


def values(descriptor: Descriptor, depth: int = 6) -> st.SearchStrategy[dict[str, Any]]:
    """Returns what a message may hold, as keyword arguments for its class: any fields, none included."""
    fields = {}
    for field in descriptor.fields:
        if f"{descriptor.full_name.removeprefix('headgate.envoy.')}.{field.name}" in NEWER_THAN_THE_PACKAGE:
            continue
        one = value_of(field, depth)
        if field.message_type and field.message_type.GetOptions().map_entry:
            one = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3)
        elif field.is_repeated:
            one = st.lists(one, max_size=3)
        fields[field.name] = one
    return st.fixed_dictionaries({}, optional=fields).map(lambda found: _one_of_each(descriptor, found))


def value_of(field: Any, depth: int) -> st.SearchStrategy[Any]:
    if field.enum_type:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if not field.message_type:
        return PLAIN[field.type]
    match field.message_type.name:
        case "Struct":
            return st.dictionaries(
                st.text(max_size=4), st.booleans() | st.text(max_size=4) | st.none(), max_size=3
            )
        case "Duration" | "Timestamp":
            return st.fixed_dictionaries({"seconds": st.integers(0, 10**9), "nanos": st.integers(0, 10**9 - 1)})
        case "UInt64Value" | "UInt32Value":
            return st.fixed_dictionaries({"value": st.integers(0, 2**32 - 1)})
        case _:
            return values(field.message_type, depth - 1) if depth else st.just({})


def _one_of_each(descriptor: Descriptor, found: dict[str, Any]) -> dict[str, Any]:
    """Of a oneof, the first that was drawn."""
    for oneof in descriptor.oneofs:
        for field in [field for field in oneof.fields if field.name in found][1:]:
            del found[field.name]
    return found


def classes(name: str) -> tuple[Any, Any]:
    module = THEIR_MODULES[0] if "Quota" not in name else THEIR_MODULES[1]
    return getattr(messages, name), getattr(import_module(module), name)


@pytest.mark.parametrize("name", TOP)
@given(data=st.data())
@settings(max_examples=60)
def test_what_one_writes_the_other_reads(name: str, data: st.DataObject) -> None:
    mine, other = classes(name)
    held = data.draw(values(ours(name)))
    written = other(**held).SerializeToString(deterministic=True)
    assert mine.FromString(written) == mine(**held)
    assert mine.FromString(written).SerializeToString(deterministic=True) == written
    assert other.FromString(mine(**held).SerializeToString()) == other(**held)


def test_negative_hits_are_the_fourth_field() -> None:
    assert messages.RateLimitDescriptor(is_negative_hits=True).SerializeToString() == b"\x20\x01"


def test_fields_from_the_future_are_passed_over() -> None:
    _, other = classes("RateLimitRequest")
    unknown = b"\xfa\x3f\x03new" + b"\xf8\x40\x07"  # a text as field 1023, a number as field 1039
    found = messages.RateLimitRequest.FromString(other(domain="shop", hits_addend=2).SerializeToString() + unknown)
    assert (found.domain, found.hits_addend) == ("shop", 2)


@pytest.mark.parametrize("first", ["headgate.service.envoy.messages", THEIR_MODULES[0]])
def test_both_live_in_one_process_whoever_comes_first(first: str) -> None:
    lines = [
        "import sys; from importlib import import_module",
        *(f"import_module({name!r})" for name in (first, "headgate.service.envoy.messages", *THEIR_MODULES)),
        "from google.protobuf import descriptor_pool",
        "from headgate.service.envoy.messages import RateLimitRequest, POOL",
        "from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest as Theirs",
        "assert RateLimitRequest.FromString(Theirs(domain='d').SerializeToString()).domain == 'd'",
        "assert POOL is not descriptor_pool.Default()",
        "try: descriptor_pool.Default().FindFileByName('headgate/envoy.proto')",
        "except KeyError: print('apart')",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "apart\n", done.stderr
