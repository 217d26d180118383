"""What the help of each command says beside its options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """A page of help.

    Attributes:
        summary: A line for the list of commands.
        usage: What follows the command's name.
        description: Paragraphs.
        examples: Lines that can be typed, behind the program's name, each with what it does.
        exits: Exit codes, each with what it means.
    """

    summary: str
    usage: str
    description: str
    examples: tuple[tuple[str, str], ...]
    exits: tuple[tuple[str, str], ...]


PAGES = {
    "run": Page(
        "run a script on a cluster of this machine, one process a task",
        "[options] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        """\
Starts one process for each task of a TensorFlow cluster, and runs the script in
each of them as `python SCRIPT ARGUMENT ...` would: as __main__, with sys.argv,
with its folder first in sys.path, and with TF_CONFIG set, so that
MultiWorkerMirroredStrategy() and the other strategies find their peers. The
script needs no line of tfmagic. Options of `run` stand before the script; all
that follows it is the script's own, but for --workers, --ps, --chief and
--evaluator directly behind it where none of them stands before it (`--` ends them).

What the tasks print comes on standard output, a whole line at a time, each behind
the task's name, and is kept in the run's folder. Standard input of the tasks is
empty.

When a task fails, the others get --grace seconds to end by themselves, and are
ended. The last lines, on standard error, say which task failed first, why, and
where. Ctrl-C raises KeyboardInterrupt in every task; a second one kills them.
SIGTERM is passed on, as of a cloud that wants its machine back: first to the chief
or worker-0, then to those that have not ended with it; after --term-grace seconds
they are ended. No process outlives the runner, however it ends.

With --ps the script starts the servers, as TensorFlow's guide does:

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type,
                             task_index=resolver.task_id).join()

ps and worker tasks then serve for ever: when the chief has ended, they are ended,
and the exit code is the chief's.""",
        (
            ("run train.py", "on two workers"),
            ("run train.py --workers 4 --epochs 3", "on four; --epochs 3 is the script's"),
            ("run --workers 2 --ps 1 train.py", "chief, two workers and a parameter server"),
            ("run -m package.train --lr 0.1", "a module, as `python -m` runs it"),
            ("run --timeout 600 --quiet test_it.py", "at most ten minutes; output only of a task that fails"),
            (
                "run --auto-restart 3 --log-dir logs train.py",
                "new processes for who dies; logs to keep",
            ),
        ),
        (
            ("0", "every task ended with 0"),
            ("N", "the task that failed first ended with sys.exit(N); 1 for an exception"),
            ("128+N", "it was ended by signal N, as 137 by SIGKILL, also for want of memory"),
            ("2", "the command line makes no sense, or there is no such script; nothing was started"),
            ("124", "--timeout has passed"),
            ("125", "the cluster could not be started"),
            ("130", "Ctrl-C"),
            ("143", "the runner got SIGTERM"),
        ),
    ),
    "doctor": Page(
        "what will get in the way here, and the line that mends it",
        "[options]",
        """\
Looks at Python, TensorFlow, Keras, memory, cores, GPUs, limits, network, proxies
and the state folder, without importing TensorFlow. Each finding is marked: ✓ fine,
! works, and not as one may expect, ✕ will fail or hang; what is not fine is
followed by the line that mends it. With a shape it says whether that cluster fits.""",
        (
            ("doctor", "for two workers"),
            ("doctor --workers 64", "for a shape"),
            ("doctor --json", "for programs: a list of {severity, what, advice}"),
        ),
        (("0", "nothing will fail"), ("1", "something will: a finding is marked ✕"), ("2", "bad usage")),
    ),
    "status": Page(
        "the clusters of this machine: their tasks, and what these do",
        "[options]",
        """\
Shows the clusters of running notebooks and scripts of this user, from what their
kernels write into the run folders: for each its owner, its folder, and a table of
its tasks as %tfcluster status shows it. With --all also those that have ended, and
those that died: whose kernel was killed and could not say so.""",
        (
            ("status", "the clusters that run"),
            ("status --all", "and those that ran"),
            ("status --json | jq '.[].tasks[].state'", "for programs"),
        ),
        (("0", "also where no cluster runs"), ("2", "bad usage")),
    ),
    "logs": Page(
        "what tasks have printed, from disk: of running, ended and dead clusters",
        "[options] [RUN] [TASK ...]",
        """\
Prints the logs of a run, each line behind its task's name. RUN is the name of a run
(the beginning of it will do), its folder, or the name of a cluster, of which the
newest run is meant; without it, the newest run of all. TASK is a task (worker-1), a
type (worker), a range (worker-0:2), or all.""",
        (
            ("logs", "of the newest run"),
            ("logs worker-1 --tail 20", "the last lines of one task"),
            ("logs --grep 'Error|loss'", "lines that match a regular expression"),
            ("logs --follow", "and what comes, until the run ends"),
            ("logs --list", "the runs that are kept, the newest last"),
            ("logs 20260131-0930 --path", "where the files are"),
        ),
        (
            ("0", "the logs were printed"),
            ("1", "there is no such run, or it has no such task"),
            ("2", "bad usage"),
            ("130", "Ctrl-C, as of --follow"),
        ),
    ),
    "tfrecord": Page(
        "verify, salvage, print, split and merge TFRecord files, without TensorFlow",
        "(verify | salvage | cat | split | merge) [options] PATH ...",
        """\
PATH is a file, a glob, a folder, or the name of a set of shards as ShardWriter takes
it. verify looks at every record, and holds shards against their manifests; salvage
copies what is whole, also behind the damage. What is written appears when it is whole,
or not at all.""",
        (
            ("tfrecord verify data/", "every file in a folder"),
            ("tfrecord salvage bad.tfrecord good.tfrecord", "what can be saved"),
            ("tfrecord cat --json --head 3 a.tfrecord", "the features of tf.train.Example"),
            ("tfrecord split --shards 8 a.tfrecord b.tfrecord", "b-00000-of-00008.tfrecord and so on"),
            ("tfrecord merge 'b-*.tfrecord' a.tfrecord", "one file of many"),
        ),
        (
            ("0", "everything is whole"),
            ("1", "something is damaged"),
            ("2", "it cannot be done: bad usage, nothing there, the name is taken, the disk is full"),
        ),
    ),
    "reap": Page(
        "end the processes that a killed kernel has left",
        "[options]",
        """\
Normally nothing is left: kernel, keeper and launcher each end the rest. Where all of
them were killed together, this ends the task processes that live on, and says which.
Processes are known by pid, start time and boot, or by a mark that they inherited;
never by name, never another user's, and none of a kernel that lives. The next start
of a cluster does the same by itself.""",
        (
            ("reap", "end them"),
            ("reap --dry-run", "only say which there are"),
            ("reap --runs", "and delete run folders that are over age or size"),
        ),
        (
            ("0", "nothing is left"),
            ("1", "something is: --dry-run, or it could not be ended"),
            ("2", "bad usage"),
        ),
    ),
}

ENVIRONMENT = (
    ("TFMAGIC_STATE_DIR", "the state folder, instead of the platform's (~/.local/state/tfmagic)"),
    ("TF_CPP_MIN_LOG_LEVEL", "3 keeps TensorFlow's own start-up lines away"),
    ("NO_COLOR", "no colours, also in a terminal"),
)
FILES = (
    ("runs/RUN/TASK.log", "in the state folder: what a task has printed"),
    ("runs/RUN/status.json", "what its kernel last said of the cluster"),
)
