"""The line of a failure that says what went wrong, in real messages of TensorFlow, Keras and others."""

import json

import pytest

from tfmagic.failures.headlines import first_line, headline

PROGRAMS = """
import os, numpy as np, tensorflow as tf, keras
weights = tf.Variable(tf.ones((64, 64)))
found = {}

@tf.function(input_signature=[tf.TensorSpec((None, None))])
def graph(x):
    return tf.matmul(x, weights)

@tf.function
def unknown(x):
    return x + undefined_name

@tf.function(jit_compile=True)
def compiled(x):
    return tf.py_function(lambda v: v, [x], tf.float32)

def model(*layers, loss="mse"):
    made = keras.Sequential(layers)
    made.compile("sgd", loss)
    return made

def note(name, program):
    try:
        program()
    except Exception as error:
        found[name] = [type(error).__name__, str(error)]

ones = np.ones((32, 50), "float32")
note("graph", lambda: graph(tf.ones((32, 50))))
note("eager", lambda: tf.matmul(tf.ones((2, 3)), tf.ones((2, 3))))
note("keras", lambda: model(keras.Input((64,)), keras.layers.Dense(64)).fit(ones, ones, verbose=0))
note("labels", lambda: model(keras.layers.Dense(3, activation="softmax"), loss="sparse_categorical_crossentropy").fit(
    ones, np.full((32,), 7), verbose=0))
note("data", lambda: list(tf.data.Dataset.range(3).map(lambda x: tf.py_function(lambda v: 1 // 0, [x], tf.int64))))
note("autograph", lambda: unknown(tf.ones(3)))
note("xla", lambda: compiled(tf.ones(3)))
import json
json.dumps(found)
"""
EXPECTED = {
    "graph": "Matrix size-incompatible: In[0]: [32,50], In[1]: [64,64]",
    "eager": "Matrix size-incompatible: In[0]: [2,3], In[1]: [2,3]",
    "keras": "to have value 64, but received input with shape (32, 50) (in Sequential.call())",
    "labels": "Received a label value of 7 which is outside the valid range of [0, 3).",
    "data": "ZeroDivisionError: ",
    "autograph": "name 'undefined_name' is not defined",
    "xla": "Detected unsupported operations when trying to compile graph",
}


def test_the_headline_of_a_real_failure_says_what_went_wrong(notebook):
    notebook.run(f"%%tfcluster --workers 1 --out found\n{PROGRAMS}")
    messages = json.loads(notebook.ns["found"]["worker-0"])
    assert messages.keys() == EXPECTED.keys()
    for name, (kind, message) in messages.items():
        line = headline(kind, message)
        assert EXPECTED[name] in line and "\n" not in line, (name, line)
        assert "File " not in line and "[[{{node" not in line and "\x1b" not in line, (name, line)
    assert len(messages["labels"][1].splitlines()) > 20  # what was left out


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("ValueError", 'plain\ntext\n  File "x"', 'plain\ntext\n  File "x"'),
        ("ValueError", "", ""),
        ("ValueError", "Graph execution error:", "Graph execution error:"),
        (
            "_InactiveRpcError",
            "<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n"
            '\tdetails = "failed to connect"\n\tdebug_error_string = "UNKNOWN"\n>',
            "UNAVAILABLE: failed to connect",
        ),
        (
            "RayTaskError",
            '\x1b[36mray::f()\x1b[39m (pid=1)\n  File "a.py", line 3, in f\n    raise KeyError("bad")\nKeyError: \'bad\'',
            "KeyError: 'bad'",
        ),
        (
            "UnavailableError",
            "Collective ops is aborted by: x\nAdditional GRPC error information from remote target /job:w:\n:{}",
            "Collective ops is aborted by: x",
        ),
    ],
)
def test_other_forms(kind, message, expected):
    assert headline(kind, message) == expected
    assert first_line(kind, message) == expected.partition("\n")[0]
