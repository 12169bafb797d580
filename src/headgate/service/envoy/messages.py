"""Envoy's rate limit messages: the same bytes on the wire, under other names here.

A message is a table: the name of a field, its number, its type. `*` is repeated, `in x` is a case of the oneof x,
`map` is a map of strings to strings. A name with a dot is nested in another. That is all there is to a protocol
buffer, and it is made into classes once, when this file is imported.

The classes are in a descriptor pool of their own, under the package headgate.envoy, and so are their copies of
Google's types. Python has one default pool in a process, and each name exists only once in it: a program that
imports Envoy's own protos, of whatever version, would conflict with ours there.

Laws (tests/service/envoy/test_messages.py):
  - every field here has the number, type, oneof and enum values that Envoy gives it;
  - what one side writes the other reads, and unknown fields are skipped;
  - nothing is added to the default pool but what Google's own modules add.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "headgate.envoy"

MESSAGES = """
RateLimitRequest
    domain                      1  string
    descriptors                 2  RateLimitDescriptor *
    hits_addend                 3  uint32

RateLimitDescriptor
    entries                     1  RateLimitDescriptor.Entry *
    limit                       2  RateLimitDescriptor.RateLimitOverride
    hits_addend                 3  google.protobuf.UInt64Value
    is_negative_hits            4  bool

RateLimitDescriptor.Entry
    key                         1  string
    value                       2  string

RateLimitDescriptor.RateLimitOverride
    requests_per_unit           1  uint32
    unit                        2  RateLimitUnit

RateLimitResponse
    overall_code                1  RateLimitResponse.Code
    statuses                    2  RateLimitResponse.DescriptorStatus *
    response_headers_to_add     3  HeaderValue *
    request_headers_to_add      4  HeaderValue *
    raw_body                    5  bytes
    dynamic_metadata            6  google.protobuf.Struct
    quota                       7  RateLimitResponse.Quota

RateLimitResponse.RateLimit
    requests_per_unit           1  uint32
    unit                        2  RateLimitResponse.RateLimit.Unit
    name                        3  string

RateLimitResponse.DescriptorStatus
    code                        1  RateLimitResponse.Code
    current_limit               2  RateLimitResponse.RateLimit
    limit_remaining             3  uint32
    duration_until_reset        4  google.protobuf.Duration
    quota                       5  RateLimitResponse.Quota

RateLimitResponse.Quota
    requests                    1  uint32
    valid_until                 2  google.protobuf.Timestamp in expiration_specifier
    id                          3  string

HeaderValue
    key                         1  string
    value                       2  string
    raw_value                   3  bytes

RateLimitQuotaUsageReports
    domain                      1  string
    bucket_quota_usages         2  RateLimitQuotaUsageReports.BucketQuotaUsage *

RateLimitQuotaUsageReports.BucketQuotaUsage
    bucket_id                   1  BucketId
    time_elapsed                2  google.protobuf.Duration
    num_requests_allowed        3  uint64
    num_requests_denied         4  uint64

BucketId
    bucket                      1  map

RateLimitQuotaResponse
    bucket_action               1  RateLimitQuotaResponse.BucketAction *

RateLimitQuotaResponse.BucketAction
    bucket_id                   1  BucketId
    quota_assignment_action     2  RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction in bucket_action
    abandon_action              3  RateLimitQuotaResponse.BucketAction.AbandonAction in bucket_action

RateLimitQuotaResponse.BucketAction.QuotaAssignmentAction
    assignment_time_to_live     2  google.protobuf.Duration
    rate_limit_strategy         3  RateLimitStrategy

RateLimitQuotaResponse.BucketAction.AbandonAction

RateLimitStrategy
    blanket_rule                1  RateLimitStrategy.BlanketRule in strategy
    requests_per_time_unit      2  RateLimitStrategy.RequestsPerTimeUnit in strategy
    token_bucket                3  TokenBucket in strategy

RateLimitStrategy.RequestsPerTimeUnit
    requests_per_time_unit      1  uint64
    time_unit                   2  RateLimitUnit

TokenBucket
    max_tokens                  1  uint32
    tokens_per_fill             2  google.protobuf.UInt32Value
    fill_interval               3  google.protobuf.Duration
"""

ENUMS = {
    "RateLimitResponse.Code": {"UNKNOWN": 0, "OK": 1, "OVER_LIMIT": 2},
    "RateLimitResponse.RateLimit.Unit": {
        "UNKNOWN": 0, "SECOND": 1, "MINUTE": 2, "HOUR": 3, "DAY": 4, "MONTH": 5, "YEAR": 6, "WEEK": 7,
    },
    "RateLimitUnit": {"UNKNOWN": 0, "SECOND": 1, "MINUTE": 2, "HOUR": 3, "DAY": 4, "MONTH": 5, "YEAR": 6},
    "RateLimitStrategy.BlanketRule": {"ALLOW_ALL": 0, "DENY_ALL": 1},
}  # fmt: skip

_Field = descriptor_pb2.FieldDescriptorProto
_SCALAR_TYPES = {
    name: getattr(_Field, f"TYPE_{name.upper()}") for name in ("string", "bytes", "bool", "uint32", "uint64")
}
_GOOGLE_MODULES = (struct_pb2, duration_pb2, timestamp_pb2, wrappers_pb2)


def _build_file() -> descriptor_pb2.FileDescriptorProto:
    """Returns the tables as one file of protos."""
    file = descriptor_pb2.FileDescriptorProto(name="headgate/envoy.proto", package=PACKAGE, syntax="proto3")
    file.dependency.extend(module.DESCRIPTOR.name for module in _GOOGLE_MODULES)
    messages: dict[str, Any] = {"": file}
    for message_table in MESSAGES.strip().split("\n\n"):
        name, *rows = message_table.splitlines()
        messages[name] = _container_of(messages, name, "message_type", "nested_type").add(
            name=name.rpartition(".")[2]
        )
        for row in rows:
            _add_field(messages[name], name, *row.split())
    for name, values in ENUMS.items():
        enum = _container_of(messages, name, "enum_type", "enum_type").add(name=name.rpartition(".")[2])
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    return file


def _container_of(messages: dict[str, Any], name: str, top: str, nested: str) -> Any:
    """Returns where a message or an enum of this name is added: to the message that it is nested in."""
    outer = name.rpartition(".")[0]
    return getattr(messages[outer], nested if outer else top)


def _add_field(message: Any, message_name: str, name: str, number: str, kind: str, *options: str) -> None:
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if "*" in options or kind == "map":
        field.label = _Field.LABEL_REPEATED
    if kind in _SCALAR_TYPES:
        field.type = _SCALAR_TYPES[kind]
    elif kind == "map":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add_field(entry, message_name, "key", "1", "string")
        _add_field(entry, message_name, "value", "2", "string")
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{message_name}.{entry.name}"
    else:
        field.type = _Field.TYPE_ENUM if kind in ENUMS else _Field.TYPE_MESSAGE
        field.type_name = f".{kind}" if kind.startswith("google.") else f".{PACKAGE}.{kind}"
    if "in" in options:
        oneof = options[-1]
        if oneof not in [existing.name for existing in message.oneof_decl]:
            message.oneof_decl.add(name=oneof)
        field.oneof_index = [existing.name for existing in message.oneof_decl].index(oneof)


def _build_pool() -> DescriptorPool:
    pool = DescriptorPool()
    for module in _GOOGLE_MODULES:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(_build_file().SerializeToString())
    return pool


POOL = _build_pool()


def _message_class(name: str) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


RateLimitRequest: Any = _message_class("RateLimitRequest")
RateLimitResponse: Any = _message_class("RateLimitResponse")
RateLimitDescriptor: Any = _message_class("RateLimitDescriptor")
HeaderValue: Any = _message_class("HeaderValue")
RateLimitQuotaUsageReports: Any = _message_class("RateLimitQuotaUsageReports")
RateLimitQuotaResponse: Any = _message_class("RateLimitQuotaResponse")
BucketId: Any = _message_class("BucketId")
RateLimitStrategy: Any = _message_class("RateLimitStrategy")
TokenBucket: Any = _message_class("TokenBucket")
