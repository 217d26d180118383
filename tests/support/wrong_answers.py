"""Wrong answers to exercises of the course, each a typical one; those in plain Python are in the notebooks."""


def _train_together(how: str, rate: float) -> str:
    """Return a cell that trains one variable, for lesson 3."""
    return (
        "%%tfcluster --out together\nwith strategy.scope():\n    w = tf.Variable(0.0)\n"
        "def replica_step():\n"
        f"    gradient = tf.distribute.get_replica_context().all_reduce('{how}', gradient_of(w))\n"
        f"    w.assign_sub({rate} * gradient)\n"
        "for number in range(20):\n    strategy.run(replica_step)\nfloat(w.numpy())"
    )


def _squares(numbers: str, power: int = 2, reads: str = "squares-*.tfrecord'") -> str:
    """Return a cell that writes and reads shards, for lesson 4."""
    return (
        "%%tfcluster --out sums\n"
        "with tfmagic.tfrecord.ShardWriter(f'{folder}/squares.tfrecord', overwrite=True) as writer:\n"
        f"    for number in {numbers}:\n        writer.write(str(number**{power}).encode())\n"
        "tfmagic.barrier()\n"
        f"sum(int(record.numpy()) for record in tfmagic.tfrecord.read_shards(f'{{folder}}/{reads}))"
    )


def _add_on_server(line: str, numbers: str = "range(1, 41)", begins: float = 0.0) -> str:
    """Return a cell that schedules a step for each number, for lesson 6."""
    return (
        f"%%tfcluster --out squares\n@tf.function\ndef add(number):\n    {line}\n"
        f"w.assign({begins})\nfor number in {numbers}:\n"
        "    coordinator.schedule(add, args=(tf.constant(float(number)),))\n"
        "coordinator.join()\nfloat(w.numpy())"
    )


def _go_on(restore: str, steps: str) -> str:
    """Return a cell that restores and trains on, for lesson 7."""
    return (
        "%%tfcluster --out ended\n"
        "with tfmagic.logdir.checkpoints({'v': v}, folder / 'go-on') as saves:\n"
        f"    {restore}\nfor step in {steps}:\n    v.assign_add(10.0)\nfloat(v.numpy())"
    )


LESSON_01 = {
    "1.1": (
        "import os\npids = {'worker-0': os.getpid(), 'worker-1': os.getpid()}",
        "%%tfcluster --out pids --on worker-0\nimport os\nos.getpid()",
        "%%tfcluster --out pids\nimport os\nprint(os.getpid())",
    ),
    "1.2": (
        "%%tfcluster --out squares\n[n * n for n in range(10)]",
        "%%tfcluster --out squares\n[n * n for n in range(me.index * 5, me.index * 5 + 4)]",
        "%%tfcluster --out squares\n[n for n in range(me.index, 10, 2)]",
    ),
    "1.3": (
        "%%tfcluster\nraise ValueError('my batch is empty')",
        "%%tfcluster\nif me.index == 1:\n    raise RuntimeError('my batch is empty')",
        "raise ValueError('my batch is empty')",
        "%%tfcluster\nif me.index == 1:\n    print('ValueError: my batch is empty')",
    ),
}
LESSON_02 = {
    "2.1": (
        "%%tfcluster --out addresses\nimport json, os\njson.loads(os.environ['TF_CONFIG'])['cluster']['worker'][0]",
        "%%tfcluster --out addresses\nimport json, os\njson.loads(os.environ['TF_CONFIG'])['cluster']['worker']",
        "%%tfcluster --out addresses --on worker\nimport json, os\n"
        "json.loads(os.environ['TF_CONFIG'])['cluster']['worker'][me.index]",
    ),
}
LESSON_03 = {
    "3.1": (
        "%%tfcluster --out overall\nsum(temperatures) / len(temperatures)",
        "%%tfcluster --out overall\n"
        "mine = strategy.run(lambda: tf.constant(sum(temperatures) / len(temperatures)))\n"
        "float(strategy.reduce('MEAN', mine, axis=None))",
        "%%tfcluster --out overall\n"
        "mine = strategy.run(lambda: tf.constant(sum(temperatures)))\n"
        "float(strategy.reduce('SUM', mine, axis=None))",
    ),
    "3.2": (
        "%%tfcluster --out together\nw = tf.Variable(0.0)\nfor number in range(20):\n"
        "    w.assign_sub(0.001 * gradient_of(w))\nfloat(w.numpy())",
        _train_together("SUM", 0.001),
        _train_together("MEAN", 0.01),
    ),
    "3.3": (
        "%%tfcluster --out reports\nimport tensorflow as tf\nme = tfmagic.current_task()\n"
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()\nloss = strategy.run(lambda: tf.constant(0.25 * (me.index + 1)))\n"
        "f'mean loss {float(strategy.reduce(\"MEAN\", loss, axis=None))}'",
        "%%tfcluster --out reports\nimport tensorflow as tf\nme = tfmagic.current_task()\n"
        "strategy = tf.distribute.MultiWorkerMirroredStrategy()\nloss = strategy.run(lambda: tf.constant(0.25 * (me.index + 1)))\n"
        "f'mean loss {float(loss)}' if me.is_chief else 'no report'",
        "%%tfcluster --out reports\n'no report'",
    ),
}
LESSON_04 = {
    "4.1": (
        "%%tfcluster --out mixed\n"
        "[int(n) for n in tf.data.Dataset.range(10).shuffle(10, seed=me.index).shard(2, me.index)]",
        "%%tfcluster --out mixed\n[int(n) for n in tf.data.Dataset.range(10).shard(2, me.index)]",
        "%%tfcluster --out mixed\n[int(n) for n in tf.data.Dataset.range(10).shuffle(10)]",
        "%%tfcluster --out mixed\nlist(tf.data.Dataset.range(10).shard(2, 0).shuffle(10).batch(2))",
    ),
    "4.3": (
        _squares("range(20)"),
        _squares("range(me.index, 20, 2)", reads="squares-*.tfrecord', task=(0, 1)"),
        _squares("range(me.index, 20, 2)", power=1),
        _squares("range(12) if me.index else range(12, 20)"),
    ),
}
LESSON_05 = {
    "5.2": (
        "%%tfcluster --out parts\nfloat(tf.reduce_mean(losses))",
        "%%tfcluster --out parts\nfloat(tf.reduce_sum(losses))",
        "%%tfcluster --out parts\nfloat(tf.reduce_sum(losses) / strategy.num_replicas_in_sync)",
    ),
}
LESSON_06 = {
    "6.1": (
        "%%tfcluster --out count\nw.assign(0.0)\n"
        "for _ in range(12):\n    coordinator.schedule(slow_step)\nseen = float(w.numpy())\n"
        "coordinator.join()\nseen",
        "%%tfcluster --out count\nw.assign(7.0)\n"
        "for _ in range(12):\n    coordinator.schedule(slow_step)\ncoordinator.join()\nfloat(w.numpy())",
        "%%tfcluster --out count\nw.assign(0.0)\nfor _ in range(12):\n    coordinator.schedule(slow_step)\n"
        "coordinator.join()\nprint(float(w.numpy()))",
        "%%tfcluster --out count\nw.assign(0.0)\nfor _ in range(12):\n    slow_step()\nfloat(w.numpy())",
    ),
    "6.2": (
        _add_on_server("w.assign_add(number)"),
        _add_on_server("w.assign_add(number * number)", "range(1, 40)"),
        _add_on_server("w.assign(number * number)", "(40,)"),
        _add_on_server("w.assign_add(number * number)", begins=1.0),
        "%%tfcluster --out squares\nfloat(sum(n * n for n in range(1, 41)))",
    ),
}
LESSON_07 = {
    "7.2": (
        "%%tfcluster --out written\npath = str(folder / 'shared' / 'state')\nif me.is_chief:\n"
        "    checkpoint.write(path)\npath",
        "%%tfcluster --out written\npath = str(folder / me.name / 'state')\ncheckpoint.write(path)\npath",
        "%%tfcluster --out written\nplace = folder / ('exercise' if me.is_chief else 'other')\n"
        "checkpoint.write(str(place / 'state'))\nstr(place / 'state')",
    ),
    "7.3": (
        "%%tfcluster --out ended\nv.assign(0.0)\nfor step in range(2):\n    v.assign_add(10.0)\nfloat(v.numpy())",
        _go_on("saves.restore()", "range(6)"),
        _go_on("for step in range(2):\n        v.assign_add(10.0)\n    saves.restore()", "()"),
    ),
}
LESSON_08 = {
    "8.1": tuple(
        "%tfcluster restart\nsurvived, kept = None, 7\n%tfcluster push kept\n%tfcluster kill worker-1\n"
        + line
        for line in (
            "%tfcluster restart",
            "%tfcluster restart\n%tfcluster push kept",
            "%tfcluster restart worker-0",
        )
    ),
    "8.2": (
        # restores, and saves nothing
        """
def count_to(last, folder, die_at=None):
    import os
    import tensorflow as tf
    number, counted = tf.Variable(0), []
    saves = tfmagic.logdir.checkpoints({"number": number}, folder)
    saves.restore_or_initialize()
    while number < last:
        if int(number) == die_at and tfmagic.current_task().index == 1:
            os._exit(1)
        number.assign_add(1)
        counted.append(int(number))
        tfmagic.barrier()
    saves.close()
    return counted
""",
        # saves, and restores nothing
        """
def count_to(last, folder, die_at=None):
    import os
    import tensorflow as tf
    number, counted = tf.Variable(0), []
    saves = tfmagic.logdir.checkpoints({"number": number}, folder)
    while number < last:
        if int(number) == die_at and tfmagic.current_task().index == 1:
            os._exit(1)
        number.assign_add(1)
        counted.append(int(number))
        saves.save(int(number))
        tfmagic.barrier()
    saves.close()
    return counted
""",
        # returns the last number only
        """
def count_to(last, folder, die_at=None):
    import os
    import tensorflow as tf
    number = tf.Variable(0)
    saves = tfmagic.logdir.checkpoints({"number": number}, folder)
    saves.restore_or_initialize()
    while number < last:
        if int(number) == die_at and tfmagic.current_task().index == 1:
            os._exit(1)
        number.assign_add(1)
        saves.save(int(number))
        tfmagic.barrier()
    saves.close()
    return int(number)
""",
    ),
}
LESSON_09 = {
    "9.1": (
        "culprit = f'worker-{(chance + 1) % 3}'",
        "culprit = 0",
        "culprit = 'worker-3'",
    ),
}
LESSON_10 = {
    "10.1": ("guilty = names[1]", "guilty = 'KeyError'", "guilty = sys.last_value"),
    "10.2": (
        "step, rate = 999, start_rate",
        "step, rate = variables_of(diverged, 'descend')['step'], start_rate",
        "step, rate = variables_of(diverged, 'descend'), None",
    ),
    "10.3": (
        "def report(error):\n    return {'worker-1': type(error).__name__}",
        "def report(error):\n    return {task: type(failure) for task, failure in error.failures.items()}",
        "def report(error):\n    return [type(failure).__name__ for failure in error.failures.values()]",
        "def report(error):\n    return {'worker-1': 'KeyError', 'worker-2': 'ZeroDivisionError'}",
    ),
}
_RECORD = """
def record(folder, values):
    import tensorflow as tf
    {place}
    with tf.summary.create_file_writer(place).as_default():
        for step, value in enumerate(values):
            tf.summary.scalar("accuracy", value, step={step})
        tf.summary.flush()
"""
LESSON_11 = {
    "11.1": (
        "who, step = f'worker-{1 - secret[\"index\"]}', secret['step']",
        "who, step = f'worker-{secret[\"index\"]}', 5",
        "(who,), step = printed_by('logs --grep WARNING'), 0",
    ),
    "11.2": (
        _RECORD.format(place="place = folder", step="step"),
        _RECORD.format(
            place="if me.index: return\n    place = tfmagic.logdir.tensorboard_dir(folder)", step="step"
        ),
        _RECORD.format(place="place = tfmagic.logdir.tensorboard_dir(folder)", step="0"),
        _RECORD.format(place="place = tfmagic.logdir.tensorboard_dir(folder)", step="step + 1"),
        _RECORD.format(place="place = tfmagic.logdir.tensorboard_dir(folder)", step="2 - step"),
    ),
}
_SAVE = """
script = '''
import json, os, sys
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
if {condition}:
    with open(sys.argv[1] + "/{name}", "w") as file:
        json.dump({{"by": task["index"], "workers": len(config["cluster"]["worker"])}}, file)
'''
"""
LESSON_12 = {
    "12.1": (
        _SAVE.format(condition="True", name="result.json"),
        _SAVE.format(condition="task['type'] == 'chief'", name="result.json"),
        _SAVE.format(condition="task['index'] == 0", name="model.json"),
        _SAVE.format(condition="task['index'] == 0", name="result.json"),
        _SAVE.format(condition="task['index'] == 0", name="result.json").replace("len(", "2 or len("),
    ),
}
_PART = "x[:, 2 * me.index : 2 * me.index + 2] @ my_rows"
LESSON_13 = {
    "13.2": (
        f"%%tfcluster --out product\n({_PART}).numpy().tolist()",
        f"%%tfcluster --out product\nstrategy.gather({_PART}, axis=1).numpy().tolist()",
        f'%%tfcluster --out product\nstrategy.reduce("MEAN", {_PART}, axis=None).numpy().tolist()',
        "%%tfcluster --out product\nfloat(tf.reduce_sum(x))",
        "%%tfcluster --out product\n[7.5, 8.5]",
    ),
}
LESSON_14 = {
    "14.1": (
        "%%tfcluster --out left\nfor step in range(1, 11):\n    if has_notice(step):\n        break\nstep",
        "%%tfcluster --out left\nfor step in range(1, 11):\n    add_up(1)\nstep",
        "%%tfcluster --out left\nfor step in range(1, 11):\n    add_up(1)\n    break\nstep",
        "%%tfcluster --out left\n3 if me.index else 4",
        "%%tfcluster --out left\n1",
    ),
}
