"""Objects that a program made before its first strategy still work; plain TensorFlow refuses the strategy."""

import pytest

STRATEGY = "%%tfcluster\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()"


@pytest.fixture
def before(notebook):
    """Run a cell on the tasks, and make a strategy after it."""

    def run(source, workers=2):
        notebook.run(f"%%tfcluster --workers {workers}\nimport tensorflow as tf\nimport keras\n" + source)
        notebook.run(STRATEGY)

    return run


def after(notebook, source):
    notebook.run(f"%%tfcluster --out r\n{source}")
    first, *others = notebook.ns["r"].of("worker")
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize("workers", [1, 2])
def test_variables_keep_their_values_and_go_on(notebook, before, workers):
    before(
        "v = tf.Variable([1.0, 2.0], name='mine')\nv.assign_add([1.0, 1.0])\ntext = tf.Variable('a')\n"
        "same = v.assign_add([1.0, 1.0])\nflag = tf.Variable(False)\nopen_shape = tf.Variable([1], shape=[None])",
        workers,
    )
    found = after(
        notebook,
        "v.assign_add([10.0, 10.0]); open_shape.assign([1, 2, 3])\n"
        "(v.numpy().tolist(), same.numpy().tolist(), v.name, text.numpy(), bool(flag), "
        "open_shape.numpy().tolist(), (v + 1).numpy().tolist())",
    )
    assert found == ([13.0, 14.0], [13.0, 14.0], "mine:0", b"a", False, [1, 2, 3], [14.0, 15.0])


def test_a_variable_keeps_its_device(notebook, before):
    before(
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)\n"
        "with tf.device('/cpu:1'):\n    v = tf.Variable(3.0)"
    )
    assert after(notebook, "v.device.rpartition('/')[2], float(v)") == ("device:CPU:1", 3.0)


def test_traced_functions_see_the_variables_of_now(notebook, before):
    before(
        "v = tf.Variable(2.0)\n"
        "@tf.function\ndef times(x):\n    return x * v\n"
        "times(tf.constant(1.0))\nconcrete = times.get_concrete_function(tf.constant(1.0))\n"
        "class Dense(tf.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.w = None\n"
        "    @tf.function\n"
        "    def __call__(self, x):\n"
        "        if self.w is None:\n            self.w = tf.Variable(tf.ones([2, 2]))\n"
        "        return tf.reduce_sum(x @ self.w)\n"
        "layer = Dense()\nlayer(tf.ones([1, 2]))\n"
    )
    found = after(
        notebook,
        "v.assign(5.0); layer.w.assign(tf.ones([2, 2]) * 2)\n"
        "with tf.GradientTape() as tape:\n    y = concrete(tf.constant(3.0))\n"
        "[float(f) for f in (times(tf.constant(3.0)), times(3.0), y, tape.gradient(y, v), layer(tf.ones([1, 2])))]",
    )
    assert found == [15.0, 15.0, 15.0, 3.0, 8.0]


def test_data_sets_and_iterators_go_on_where_they_were(notebook, before):
    before(
        "offset = tf.Variable(100, dtype=tf.int64)\n"
        "numbers = tf.data.Dataset.range(6).map(lambda x: x * 2).batch(2)\n"
        "made = tf.data.Dataset.from_generator(lambda: iter([1, 2, 3]), output_signature=tf.TensorSpec([], tf.int32))\n"
        "moved = tf.data.Dataset.range(2).map(lambda x: x + offset)\n"
        "list(numbers), list(made), list(moved)\n"
        "iterator = iter(numbers)\nnext(iterator)"
    )
    found = after(
        notebook,
        "offset.assign(200)\n"
        "[[x.numpy().tolist() for x in d] for d in (numbers, made, numbers.unbatch().take(2), iterator)]",
    )
    assert found == [[[0, 2], [4, 6], [8, 10]], [1, 2, 3], [0, 2], [[4, 6], [8, 10]]]


def test_a_keras_model_goes_on_with_its_weights(notebook, before):
    before(
        "keras.utils.set_random_seed(1)\n"
        "model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.5), "
        "keras.layers.Dense(1)])\n"
        "model.compile(keras.optimizers.Adam(), 'mse', metrics=['mae'])\n"
        "X, Y = tf.ones([8, 3]), tf.ones([8, 1])\n"
        "model.fit(X, Y, verbose=0, epochs=2)\nbefore = model.predict(X, verbose=0).tolist()\n"
        "data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)"
    )
    found = after(
        notebook,
        "same = model.predict(X, verbose=0).tolist() == before\n"
        "history = model.fit(data, verbose=0, epochs=2).history\n"
        "same, sorted(history), int(model.optimizer.iterations), len(model.evaluate(data, verbose=0))",
    )
    assert found == (True, ["loss", "mae"], 6, 2)


def test_generators_go_on_with_their_state(notebook, before):
    before("g = tf.random.Generator.from_seed(3)\ng.normal([2])\nstate = g.state.numpy().tolist()")
    expected = (
        "other = tf.random.Generator.from_seed(3)\nother.normal([2])\n"
        "(g.state.numpy().tolist() == state, bool(tf.reduce_all(g.normal([2]) == other.normal([2]))))"
    )
    assert after(notebook, expected) == (True, True)


def test_a_saved_model_that_was_loaded_goes_on(notebook, before, tmp_path):
    folder = str(tmp_path / "model")
    before(
        "import tfmagic\n"
        "class Scale(tf.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.k = tf.Variable(4.0)\n"
        "    @tf.function(input_signature=[tf.TensorSpec([])])\n"
        "    def __call__(self, x):\n        return x * self.k\n"
        f"where = {folder!r} + tfmagic.current_task().name\n"
        "tf.saved_model.save(Scale(), where)\nloaded = tf.saved_model.load(where)\nloaded(tf.constant(1.0))"
    )
    assert after(notebook, "loaded.k.assign(6.0)\nfloat(loaded(tf.constant(2.0)))") == 12.0


def test_a_strategy_that_fails_to_start_loses_nothing(notebook):
    notebook.run("%%tfcluster --workers 2\nimport tensorflow as tf\nv = tf.Variable(7.0)")
    with pytest.raises(Exception, match="worker-1 does not run this cell"):
        notebook.run(STRATEGY.replace("%%tfcluster", "%%tfcluster --on worker-0"))
    notebook.run(STRATEGY)
    assert after(notebook, "float(v)") == 7.0


@pytest.mark.parametrize("ending", ["in the cell", "by it", "before the meeting"])
def test_a_change_right_after_a_strategy_that_failed_to_start_is_kept(notebook, ending):
    notebook.run(
        "%%tfcluster --workers 2\nimport tensorflow as tf\nv = tf.Variable(7.0)\nsame = v.assign(8.0)"
    )
    failing = "tf.distribute.MultiWorkerMirroredStrategy()\n"
    change = "v.assign_add(1.0)\nsame.assign_add(1.0)\n"
    if ending == "in the cell":
        notebook.run(f"%%tfcluster --on worker-0\ntry:\n    {failing}except Exception:\n    pass\n{change}")
    else:
        if ending == "before the meeting":  # as by an interrupt at that moment
            failing = (
                "from tensorflow.python.eager import context\n"
                "context.context().configure_collective_ops('/job:worker/replica:0/task:0')\nraise KeyError\n"
            )
        with pytest.raises(Exception, match="worker-1 does not run this cell" if ending == "by it" else None):
            notebook.run(f"%%tfcluster --on worker-0\n{failing}")
        notebook.run(f"%%tfcluster --on worker-0\n{change}")
    notebook.run("%%tfcluster --on worker-0 --out r\nfloat(v), float(same)")
    assert notebook.ns["r"].of("worker") == [(10.0, 10.0)]
    notebook.run(STRATEGY)
    notebook.run("%%tfcluster --out r\nv.assign_add(1.0)\nfloat(v)")
    assert notebook.ns["r"].of("worker") == [11.0, 9.0]


def test_an_open_summary_writer_is_named_and_a_closed_one_is_not(notebook, tmp_path):
    notebook.ns["folder"] = str(tmp_path)
    notebook.run(
        "%%tfcluster --workers 2\nimport tensorflow as tf\nw = tf.summary.create_file_writer(folder)"
    )
    with pytest.raises(RuntimeError, match="its open summary writer would be lost"):
        notebook.run(STRATEGY)
    notebook.run("%%tfcluster\nw.close()")
    notebook.run(STRATEGY)
