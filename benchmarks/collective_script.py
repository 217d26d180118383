"""Let three workers all-reduce for ever; the last one kills itself after a second.

`failures` runs this text unchanged as a cell and as plain processes. A survivor prints the time of its error,
on the clock that all processes of a machine share.
"""

import json
import os
import signal
import time

import tensorflow as tf

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()


def replica():
    return tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([1000]))


@tf.function
def step():
    return strategy.reduce("SUM", strategy.run(replica), axis=None)


step()
deadline = time.monotonic() + 1
try:
    while True:
        step()
        if index == 2 and time.monotonic() > deadline:
            print(json.dumps({"killed": time.monotonic()}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
except tf.errors.OpError:
    print(json.dumps({"noticed": time.monotonic()}), flush=True)
    raise
