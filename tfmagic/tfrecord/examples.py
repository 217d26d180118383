"""Parse a serialized tf.train.Example without TensorFlow, for `tfmagic tfrecord cat --json`.

The message types are those of tensorflow/core/example/{example,feature}.proto. They stand in a descriptor
pool of their own, so that they do not collide with TensorFlow's. protobuf 3.20 to 7 are supported.
"""

import functools
from typing import Any

_VALUE = 'field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_%s }'
_ONE = 'field { name: "%s" number: %d label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".%s" %s }'
_FILE = f"""
name: "example.proto" syntax: "proto3"
message_type {{ name: "BytesList" {_VALUE % "BYTES"} }}
message_type {{ name: "FloatList" {_VALUE % "FLOAT"} }}
message_type {{ name: "Int64List" {_VALUE % "INT64"} }}
message_type {{ name: "Feature" oneof_decl {{ name: "kind" }}
  {_ONE % ("bytes_list", 1, "BytesList", "oneof_index: 0")}
  {_ONE % ("float_list", 2, "FloatList", "oneof_index: 0")}
  {_ONE % ("int64_list", 3, "Int64List", "oneof_index: 0")} }}
message_type {{ name: "Features"
  field {{ name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
    type_name: ".Features.FeatureEntry" }}
  nested_type {{ name: "FeatureEntry" options {{ map_entry: true }}
    field {{ name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }}
    {_ONE % ("value", 2, "Feature", "")} }} }}
message_type {{ name: "Example" {_ONE % ("features", 1, "Features", "")} }}
"""


def parse_example(data: bytes) -> dict[str, list[bytes] | list[float] | list[int]]:
    """Return the features of a serialized Example, in the order of their names.

    Raises:
        ValueError: The data are no Example.
    """
    from google.protobuf.message import DecodeError

    example = _example_class()()
    try:
        example.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    size = example.ByteSize()
    example.DiscardUnknownFields()
    if example.ByteSize() != size:
        raise ValueError("it has a field that an Example does not have")
    found = {}
    for name, feature in sorted(example.features.feature.items(), key=lambda item: item[0]):
        kind = feature.WhichOneof("kind")
        found[name] = list(getattr(feature, kind).value) if kind else []
    return found


@functools.cache
def _example_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    file = text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto())
    pool.AddSerializedFile(file.SerializeToString())
    example = pool.FindMessageTypeByName("Example")
    if hasattr(message_factory, "GetMessageClass"):  # since 4.22
        return message_factory.GetMessageClass(example)
    return message_factory.MessageFactory(pool).GetPrototype(example)
