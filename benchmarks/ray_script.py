"""A plain Ray program with 4 actors, driven by requests on standard input; see `benchmarks.hosts`.

python ray_script.py ADDRESS FD      each answer is a line of numbers on the descriptor FD

cells COUNT     COUNT calls of all actors with a statement that does nothing, each timed, in seconds
start           new actors: seconds until all have answered, and until each has run a TensorFlow op
output COUNT    every actor prints COUNT lines: seconds from each print to its line in this process
put COUNT       an array to all actors at once, COUNT times: seconds of each
get COUNT       an array from each actor, COUNT times: seconds of each, the actor's number varies fastest
nodes           the last number of the address of each actor's node
memory          the unique memory of each actor, in bytes
"""

import queue
import sys
import time

import ray

ACTORS = 4
SHAPE = (64, 1024, 128)
FIRST_OP = "import tensorflow as tf\ntf.constant(1) + 1\n"


class Plain:
    """What a user would write to run code on hosts."""

    def __init__(self):
        self.names = {}

    def run(self, source):
        exec(source, self.names)

    def print_times(self, count, pause_s):
        for _ in range(count):
            print("printed", time.monotonic(), flush=True)
            time.sleep(pause_s)

    def array(self, number):
        if "array" not in self.names:
            import numpy

            self.names["array"] = numpy.random.default_rng(0).random(SHAPE)
        self.names["array"][0, 0, 0] = number
        return self.names["array"]

    def keep(self, array):
        self.names["kept"] = array

    def node(self):
        return int(ray.util.get_node_ip_address().rpartition(".")[2])

    def memory(self):
        import psutil

        return psutil.Process().memory_full_info().uss


class Arrivals:
    """Standard output: Ray writes there what the actors print."""

    def __init__(self):
        self.delays_s = queue.Queue()

    def write(self, text):
        for line in text.splitlines():
            words = line.split()
            if "printed" in words:
                self.delays_s.put(time.monotonic() - float(words[-1].removesuffix("\x1b[0m")))

    def flush(self):
        pass


def _actors():
    actor = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(Plain)
    return [actor.remote() for _ in range(ACTORS)]


def _start(actors):
    for actor in actors:
        ray.kill(actor)
    started = time.perf_counter()
    actors[:] = _actors()
    ray.get([actor.run.remote("pass") for actor in actors])
    ready_s = time.perf_counter() - started
    ray.get([actor.run.remote(FIRST_OP) for actor in actors])
    return ready_s, time.perf_counter() - started


def _put(actors, array, number):
    array[0, 0, 0] = number
    ref = ray.put(array)
    ray.get([actor.keep.remote(ref) for actor in actors])


def _timed(call):
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    address, fd = sys.argv[1], int(sys.argv[2])
    arrivals = sys.stdout = Arrivals()
    ray.init(address=address, configure_logging=False)
    actors = _actors()
    with open(fd, "w", buffering=1) as answers:
        for line in sys.stdin:
            what, *numbers = line.split()
            count = int(numbers[0]) if numbers else 0
            if what == "cells":
                values = [
                    _timed(lambda: ray.get([actor.run.remote("pass") for actor in actors]))
                    for _ in range(count)
                ]
            elif what == "start":
                values = _start(actors)
            elif what == "output":
                ray.get([actor.print_times.remote(count, 0.05) for actor in actors])
                values = [arrivals.delays_s.get(timeout=30) for _ in range(count * len(actors))]
            elif what == "put":
                import numpy

                array = numpy.random.default_rng(0).random(SHAPE)
                values = [_timed(lambda n=n, array=array: _put(actors, array, n)) for n in range(count)]
            elif what == "get":
                values = [
                    _timed(lambda actor=actor, n=n: ray.get(actor.array.remote(n)))
                    for n in range(count)
                    for actor in actors
                ]
            elif what == "nodes":
                values = ray.get([actor.node.remote() for actor in actors])
            else:
                values = ray.get([actor.memory.remote() for actor in actors])
            print(*values, file=answers)


if __name__ == "__main__":
    main()
