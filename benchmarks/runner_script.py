"""Run one of the two runners by requests on standard input; see `benchmarks.runner`.

python runner_script.py ours|theirs FD      each answer is a line of seconds on the descriptor FD

run N           multi_process_runner.run of a function that does nothing, on N workers
pool N COUNT    COUNT calls of a pool of N workers, each timed; the pool stays
"""

import sys
import time


def nothing():
    return None


def main() -> None:
    whose, fd = sys.argv[1], int(sys.argv[2])
    if whose == "ours":
        from tfmagic import multi_process_runner
        from tfmagic.multi_process_runner import create_cluster_spec
    else:
        from tensorflow.python.distribute import multi_process_lib, multi_process_runner
        from tensorflow.python.distribute.multi_worker_test_base import create_cluster_spec

        multi_process_lib._test_main_called = True  # otherwise it works only under its own test main
    pools = {}
    with open(fd, "w", buffering=1) as answers:
        for line in sys.stdin:
            what, *numbers = line.split()
            count = int(numbers[0])
            if what == "run":
                started = time.perf_counter()
                multi_process_runner.run(nothing, create_cluster_spec(num_workers=count))
                times_s = [time.perf_counter() - started]
            else:
                if count not in pools:
                    spec = create_cluster_spec(num_workers=count)
                    pools[count] = multi_process_runner.MultiProcessPoolRunner(spec)
                times_s = []
                for _ in range(int(numbers[1])):
                    started = time.perf_counter()
                    pools[count].run(nothing)
                    times_s.append(time.perf_counter() - started)
            print(*times_s, file=answers)
    for pool in pools.values():
        pool.shutdown()


if __name__ == "__main__":
    main()
