"""The text of each command's help page, beside its options. Read by `parsers`."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from tfmagic.system import features


class Page(NamedTuple):
    """A page of help, and of a feature's command what else the program needs to know.

    A feature has its pages in a module ``pages`` as `PAGES`, and `main` in a module ``shell``.
    """

    summary: str  #: one line for the list of commands
    usage: str  #: the words after the command's name
    description: str
    examples: tuple[tuple[str, str], ...]  #: lines to type after the program's name, each with its meaning
    exits: tuple[tuple[str, str], ...]  #: exit codes, each with its meaning
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None  #: `parsers` has the others
    after: str = ""  #: the command that it follows in lists; by default it is the last one
    everywhere: bool = False  #: whether it works on systems on which no task can run
    module: str = ""  #: where its `main` is, set by `with_features`


PAGES = {
    "run": Page(
        "run a script on a cluster of this machine, one process a task",
        "[options] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        """\
Starts one process for each task of a TensorFlow cluster, and runs the script in
each of them as `python SCRIPT ARGUMENT ...` would: as __main__, with sys.argv, and
with its folder first in sys.path. TF_CONFIG is set, so MultiWorkerMirroredStrategy()
and the other strategies find their peers. The script needs no line of tfmagic.

Options of `run` stand before the script; everything after it belongs to the script.

The output of the tasks goes to standard output, one whole line at a time, each after
the task's name, and is kept in the run's folder. Where it is not a terminal, what
Python writes to the tasks' error stream goes to standard error. The tasks' standard
input is empty.

When a task fails, the others get --grace seconds to end by themselves; then they are
ended. The last lines, on standard error, show which task failed first, why, and
where. Ctrl-C raises KeyboardInterrupt in every task; a second one kills them.
SIGTERM (a cloud sends it to take its machine back) goes first to the chief or
worker-0, then to the tasks that have not ended by then; after --term-grace seconds
they are killed. SIGHUP, SIGQUIT and a closed standard output do the same. No process
outlives the runner, however it ends.

With --ps the script starts the servers, as in TensorFlow's guide:

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type,
                             task_index=resolver.task_id).join()

ps and worker tasks then serve for ever. When the chief has ended, they are ended,
and the exit code is the chief's. A script that takes worker-0 for the chief, as
scripts for TensorFlow 1 do, needs --no-chief: the ps tasks are ended when all workers
have ended.""",
        (
            ("run train.py", "on two workers"),
            ("run --workers 4 train.py --epochs 3", "on four; --epochs 3 is the script's"),
            ("run --workers 2 --ps 1 train.py", "chief, two workers and a parameter server"),
            ("run --workers 2 --ps 1 --no-chief tf1.py", "the same without a chief"),
            ("run -m package.train --lr 0.1", "a module, as `python -m` runs it"),
            ("run --timeout 600 --quiet test_it.py", "at most ten minutes; only failed tasks' output"),
            ("run --json train.py", "for programs: the last line is the outcome and the errors"),
            ("run --auto-restart 3 --log-dir logs train.py", "restart tasks that die; keep the logs"),
        ),
        (
            ("0", "every task ended with 0"),
            ("N", "the task that failed first ended with sys.exit(N); 1 for an exception"),
            ("128+N", "signal N ended it: 137 is SIGKILL, also when memory ran out"),
            ("2", "a mistake on the command line, or no such script; nothing was started"),
            ("124", "--timeout has passed"),
            ("125", "the cluster could not be started"),
            ("130", "Ctrl-C"),
            ("129, 131, 143", "the runner got SIGHUP, SIGQUIT, SIGTERM"),
            ("141", "the reader of standard output has closed it"),
        ),
    ),
    "status": Page(
        "show the clusters of this machine and their tasks",
        "[options]",
        """\
Shows the clusters of this user's running notebooks and scripts, as their kernels
write it into the run folders: for each cluster its owner, its folder, and the table
of its tasks that %tfcluster status shows. --all adds the clusters that have ended,
and those that died because their kernel was killed. Below them are the processes that
have TensorFlow imported for the next kernel: those of Jupyter servers, and of `warm`.""",
        (
            ("status", "the clusters that run"),
            ("status --all", "also those that have ended"),
            ("status --json | jq '.[].tasks[].state'", "for programs"),
        ),
        (("0", "success, also if no cluster runs"), ("2", "bad usage")),
    ),
    "logs": Page(
        "print the tasks' output from disk, of running, ended and dead clusters",
        "[options] [RUN] [TASK ...]",
        """\
Prints the logs of a run, each line after its task's name. RUN is the name of a run or
the beginning of that name, its folder, or the name of a cluster, which stands for its
newest run. Without RUN it is the newest run of this folder, else of all. TASK is a task
(worker-1), a type (worker), a range (worker-0:2), or all.""",
        (
            ("logs", "the output of the newest run"),
            ("logs worker-1 --tail 20", "the last lines of one task"),
            ("logs --grep 'Error|loss'", "lines that match a regular expression"),
            ("logs --follow", "also new output, until the run ends"),
            ("logs worker-0 --since 1000 --json", "for programs: the text, and the offset to go on"),
            ("logs --list", "the runs that are kept, the newest last"),
            ("logs 20260131-0930 --path", "the paths of the files"),
        ),
        (
            ("0", "the logs were printed"),
            ("1", "there is no such run, or it has no such task"),
            ("2", "bad usage"),
            ("130", "Ctrl-C, for example with --follow"),
        ),
    ),
    "errors": Page(
        "print the failures of the last cell of a run",
        "[options] [RUN] [TASK ...]",
        """\
Prints every failure of the last cell of a notebook's run in full, the root cause first,
also while its kernel is busy. RUN and TASK are as for logs. For a script use run --json.""",
        (
            ("errors", "of the newest run"),
            ("errors worker-1", "of one task"),
            ("errors --json | jq '.[0].message'", "for programs: the root cause is the first one"),
        ),
        (
            ("0", "success, also if no task failed"),
            ("1", "there is no such run, or it has no such task or no cell"),
            ("2", "bad usage"),
        ),
    ),
    "wait": Page(
        "wait for the last cell of a run",
        "[options] [RUN]",
        """\
Waits until the last cell of a notebook's run has ended, and prints how it ended. After
--timeout it prints how far the cell is: the lines that the tasks execute, and the last
values that they have tracked.""",
        (
            ("wait", "for the newest run"),
            ("wait --timeout 100", "at most 100 seconds"),
            ("wait --timeout 1 --json", "how far it is, for programs"),
        ),
        (
            ("0", "the cell ended well"),
            ("1", "it failed or was stopped, or there is no such run"),
            ("2", "bad usage"),
            ("124", "it still runs"),
        ),
    ),
    "tfrecord": Page(
        "verify, salvage, print, split and merge TFRecord files, without TensorFlow",
        "(verify | salvage | cat | split | merge) [options] PATH ...",
        """\
PATH is a file, a glob, a folder, or the name of a set of shards as for ShardWriter.
verify checks every record, and compares shards with their manifests. salvage copies
the intact records, also those after the damage. An output file appears when it is
complete, or not at all.""",
        (
            ("tfrecord verify data/", "every file in a folder"),
            ("tfrecord salvage bad.tfrecord good.tfrecord", "copy the intact records"),
            ("tfrecord cat --json --head 3 a.tfrecord", "the features of tf.train.Example"),
            ("tfrecord split --shards 8 a.tfrecord b.tfrecord", "b-00000-of-00008.tfrecord and so on"),
            ("tfrecord merge 'b-*.tfrecord' a.tfrecord", "one file from many"),
        ),
        (
            ("0", "everything is intact"),
            ("1", "something is damaged"),
            ("2", "bad usage, no such file, the output exists, the disk is full"),
        ),
    ),
    "warm": Page(
        "import TensorFlow once for the scripts and tests that follow",
        "[--minutes N]",
        """\
Starts a process in the background that imports TensorFlow. Until it ends, clusters of
the same environment fork their tasks from it, and start in less than a second: those
of `tfmagic run`, of scripts, of tests and of notebooks. The environment is the
interpreter, the installed packages, the environment variables, the limits and rights
of the process, and the modules on sys.path: where one of them differs, TensorFlow is
imported as always. No task belongs to this process: tasks end with what has started
them. `status` shows it. It ends after N minutes, or with `reap`.""",
        (
            ("warm", "for 30 minutes"),
            ("warm --minutes 120", "for two hours"),
        ),
        (("0", "TensorFlow is imported"), ("1", "it runs already, or it failed"), ("2", "bad usage")),
    ),
    "reap": Page(
        "end the processes that a killed kernel left behind, and those of `warm`",
        "[options]",
        """\
Normally no process is left: kernel, reaper and launcher each end the rest. If all of
them were killed together, this command ends the task processes that live on, and
lists them. It identifies processes by pid, start time and boot, or by a mark that they
inherited. It never goes by name, and never ends another user's process or one of a
living kernel. The next start of a cluster does the same.

It also ends the processes that `warm` has started, and those that a killed Jupyter
server has left.""",
        (
            ("reap", "end the processes"),
            ("reap --dry-run", "only list them"),
            ("reap --runs", "also delete run folders over the limit of age or size"),
        ),
        (("0", "no process is left"), ("1", "a process is left"), ("2", "bad usage")),
    ),
    "explain": Page(
        "print what a short name in a message means",
        "[NAME]",
        """\
Hints and errors have short names, such as unequal-collective or TaskDied. This prints
what one means and what to do, without a network. Without a name it lists them.""",
        (("explain unequal-collective", "print one entry"), ("explain", "list the names")),
        (("0", "printed"), ("1", "there is no such entry"), ("2", "bad usage")),
        everywhere=True,
    ),
}

ENVIRONMENT = (
    ("TFMAGIC_STATE_DIR", "the state folder, instead of the platform's (~/.local/state/tfmagic)"),
    ("TFMAGIC_TRACE", "a file that gets all that the loops of clusters see and decide, a JSON object a line"),
    ("TF_CPP_MIN_LOG_LEVEL", "3 hides TensorFlow's own start-up lines"),
    ("NO_COLOR", "no colours, not even in a terminal"),
)
FILES = (
    ("runs/RUN/TASK.log", "in the state folder: a task's output"),
    ("runs/RUN/status.json", "the last status that the kernel wrote"),
    ("runs/RUN/timeline.jsonl", "what the tasks did, and when"),
    (
        "runs/RUN/story.msgpack",
        "what the loop saw and decided before the last trouble; `tfmagic report` shows it",
    ),
)


def with_features() -> dict[str, Page]:
    """Return all pages by command, those of features where they belong."""
    found = list(PAGES.items())
    for half in features.halves("pages"):
        for name, page in half.PAGES.items():
            names = [known for known, _ in found]
            place = names.index(page.after) + 1 if page.after in names else len(found)
            module = f"{half.__name__.rpartition('.')[0]}.shell"
            found.insert(place, (name, page._replace(module=module)))
    return dict(found)
