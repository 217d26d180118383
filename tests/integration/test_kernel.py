"""A real ipykernel, driven as a front end drives it."""

import os
import re
import signal
import uuid

import psutil
import pytest
from conftest import ENDED_S, alive, wait_until
from jupyter_client.manager import KernelManager
from kernels import plain, text_of


def test_a_line_is_on_screen_while_the_cell_still_runs(kernel, tmp_path):
    kernel.run("%load_ext tfmagic")
    kernel.run("%tfcluster start --workers 2")
    flag = tmp_path / "go"
    cell = kernel.start(
        "%%tfcluster --view text\nimport os, time, tfmagic\nprint('early', flush=False)\n"
        f"while not os.path.exists({str(flag)!r}):\n    time.sleep(0.005)\nprint('late')"
    )
    seen = kernel.outputs(cell, until=lambda o: "early" in o[1].get("text", ""))
    assert not any("late" in c["text"] for kind, c in seen if kind == "stream")
    flag.touch()
    rest = "".join(c["text"] for kind, c in kernel.outputs(cell) if kind == "stream")
    assert {"[worker-0]:    late", "[worker-1]:    late"} <= set(rest.splitlines())


def test_figures_and_tables_of_tasks_are_shown_as_such(kernel):
    kernel.run("%load_ext tfmagic")
    shown = kernel.run(
        "%%tfcluster --workers 1 --view text\nimport matplotlib.pyplot as plt\nprint('before')\n"
        "plt.plot([1, 2]); plt.show()\nprint('after')"
    )
    place = next(i for i, (kind, c) in enumerate(shown) if "image/png" in c.get("data", {}))
    text_before = "".join(c["text"] for kind, c in shown[:place] if kind == "stream")
    assert "before" in text_before and "after" not in text_before


WIDGETS = """%%tfcluster --workers 2
from ipywidgets import HTML, IntSlider
from tqdm.notebook import tqdm
import comm, time
for _ in tqdm(range(20)):
    pass
for _ in tqdm(range(30), leave=False):
    pass
slider, seen = IntSlider(value=3), []
slider.observe(lambda change: seen.append(change.new), "value")
named = comm.create_comm("mine", comm_id="same")
slider
"""


def states_of(outputs, kind="comm_msg"):
    """Return the states in the messages of widgets, in order, by comm."""
    found = {}
    for name, content in outputs:
        if name == kind and "state" in content["data"]:
            found.setdefault(content["comm_id"], []).append(content["data"]["state"])
    return found


def states_of_a_page_that_is_loaded_again(kernel):
    comm = uuid.uuid4().hex
    kernel.send_comm("comm_open", {"version": "1.0.0"}, comm_id=comm, target_name="jupyter.widget.control")
    kernel.send_comm("comm_msg", comm_id=comm, data={"method": "request_states"})
    return kernel.hear(lambda kind, c: kind == "comm_msg" and c["comm_id"] == comm)["data"]["states"]


def test_widgets_of_tasks_live_on_the_page_in_both_directions(kernel):
    kernel.run("%load_ext tfmagic")
    shown = kernel.run(WIDGETS)
    names = {comm: states[0]["_model_name"] for comm, states in states_of(shown, "comm_open").items()}
    one, other = [comm for comm, name in names.items() if name == "IntSliderModel"]
    bars = [line for line in text_of(shown).splitlines() if "100% |████████████████████| 20/20" in line]
    assert [line[:11] for line in bars] == ["[worker-0]:", "[worker-1]:"]
    assert "/30" not in text_of(shown) and "widget]" not in text_of(shown)
    mine = [c["comm_id"] for kind, c in shown if kind == "comm_open" and c["target_name"] == "mine"]
    assert len(set(mine)) == 2 and all(name.startswith("same-") for name in mine)
    below = next(c["data"] for kind, c in shown if "live while" in c.get("data", {}).get("text/plain", ""))
    assert below["text/plain"].startswith("the widgets of worker-0, worker-1")

    kernel.send_comm(
        "comm_msg", comm_id=one, data={"method": "update", "state": {"value": 7}, "buffer_paths": []}
    )
    lines = kernel.text("%%tfcluster\nprint(slider.value, seen)").splitlines()
    assert sorted(line[15:] for line in lines if line) == ["3 []", "7 [7]"]
    changed = states_of(kernel.run("%%tfcluster\nslider.value += 1"))
    assert {comm: states[-1]["value"] for comm, states in changed.items()} == {one: 8, other: 4}

    assert states_of_a_page_that_is_loaded_again(kernel)[one]["state"]["value"] == 8

    closed, texts = set(), []

    def have_ended(kind, content):
        if kind == "comm_close":
            closed.add(content["comm_id"])
        elif kind == "update_display_data":
            texts.append(content["data"]["text/plain"])
        return {one, other} <= closed and texts

    kernel.start("%tfcluster stop")
    kernel.hear(have_ended)
    assert "IntSlider(value=8)" in texts[-1] and "IntSlider(value=4)" in texts[-1]
    left = states_of_a_page_that_is_loaded_again(kernel)
    assert not left.keys() & names.keys()
    assert not [
        state for state in left.values() if state["model_name"] in ("HBoxModel", "VBoxModel", "LabelModel")
    ]


def test_a_flood_of_updates_costs_page_and_kernel_little(kernel):
    kernel.run("%load_ext tfmagic")
    shown = kernel.run(
        "%%tfcluster --workers 1\nfrom ipywidgets import IntProgress, Valid\nbar = IntProgress(max=30_000)\n"
        "late = [Valid() for _ in range(30)]\ndisplay(bar)\nfor n in range(30_000):\n    bar.value = n + 1\n"
        "late[0].value = True"
    )
    values = [state["value"] for states in states_of(shown).values() for state in states if "value" in state]
    assert values[-2:] == [30_000, True] and len(values) < 500
    assert "|████████████████████|" in text_of(shown)
    shown = kernel.run("%%tfcluster\nfor n in range(30_000):\n    bar.send({'n': n})")
    numbers = [c["data"]["content"]["n"] for kind, c in shown if kind == "comm_msg"]
    lost = sum(map(int, re.findall(r"tfmagic: (\d+) messages of widgets were left out", text_of(shown))))
    assert numbers == sorted(numbers) and lost == 30_000 - len(numbers) > 0


def test_a_callback_that_takes_long_can_be_interrupted_and_keeps_the_task(kernel):
    kernel.run("%load_ext tfmagic")
    shown = kernel.run(
        "%%tfcluster --workers 1\nfrom ipywidgets import Button\nimport time\nkept = 1\nb = Button()\n"
        "def wait(_):\n    print('in the callback')\n    while True: time.sleep(0.01)\nb.on_click(wait)\nb"
    )
    names = {comm: states[0]["_model_name"] for comm, states in states_of(shown, "comm_open").items()}
    button = next(comm for comm, name in names.items() if name == "ButtonModel")
    kernel.send_comm("comm_msg", comm_id=button, data={"method": "custom", "content": {"event": "click"}})
    wait_until(lambda: "in the callback" in kernel.text("%tfcluster logs"))
    name, _ = kernel.error("%%tfcluster --timeout 0.2\nprint('never')")
    assert name == "TaskTimeoutError"
    assert kernel.text("%%tfcluster\nprint(kept)").strip() == "[worker-0]:    1"


def test_an_output_widget_takes_what_is_printed_in_it_and_by_its_callbacks(kernel):
    kernel.run("%load_ext tfmagic")
    shown = kernel.run(
        "%%tfcluster --workers 1\nfrom ipywidgets import Button, Output, interact\nout, b = Output(), Button()\n"
        "with out:\n    print('inside')\n    display('shown')\n    1 / 0\nprint('outside')\n"
        "@out.capture(clear_output=True)\ndef clicked(_): print('clicked')\nb.on_click(clicked)\n"
        "display(out, b)\nw = interact(lambda x: print('x is', x), x=3)"
    )
    text = text_of(shown)
    assert "[worker-0]:    outside\n[worker-0]:    inside\n[worker-0]:    'shown'" in text
    assert "ZeroDivisionError" in text and "x is 3" in text
    opened = states_of(shown, "comm_open")
    button = next(comm for comm, (state, *_) in opened.items() if state["_model_name"] == "ButtonModel")
    slider = next(comm for comm, (state, *_) in opened.items() if state["_model_name"] == "IntSliderModel")
    for comm, data in (
        (button, {"method": "custom", "content": {"event": "click"}}),
        (slider, {"method": "update", "state": {"value": 4}, "buffer_paths": []}),
    ):
        kernel.send_comm("comm_msg", comm_id=comm, data=data)
    outputs = [kernel.hear(lambda kind, c: "outputs" in c.get("data", {}).get("state", {})) for _ in "12"]
    texts = [content["data"]["state"]["outputs"][-1]["text"] for content in outputs]
    assert texts == ["clicked\n", "x is 4\n"]
    kernel.run("%tfcluster stop")
    kernel.hear(lambda kind, c: "x is 4" in c.get("data", {}).get("text/plain", ""))  # the saved form


def test_an_output_widget_that_is_empty_when_it_is_displayed_has_a_view_and_is_cleared_late(kernel):
    kernel.run("%load_ext tfmagic")
    shown = kernel.run(
        "%%tfcluster --workers 1\nfrom ipywidgets import Button, HTML, Output\nout, b = Output(), Button()\n"
        "numbers = iter(range(9))\n@out.capture(clear_output=True, wait=True)\n"
        "def clicked(_): print('clicked', next(numbers))\nb.on_click(clicked)\ndisplay(HTML(), out, b)"
    )
    assert "[worker-0]:    HTML(value='')\n[worker-0]:    Output()\n[worker-0]:    Button(" in text_of(shown)
    opened = {
        comm: state for comm, (state, *_) in states_of(shown, "comm_open").items() if "_model_name" in state
    }
    (button,) = [comm for comm, state in opened.items() if state["_model_name"] == "ButtonModel"]
    (out,) = [comm for comm, state in opened.items() if state["_model_name"] == "OutputModel"]
    assert any(f"IPY_MODEL_{out}" in state.get("children", ()) for state in opened.values())
    for text in ("clicked 0\n", "clicked 1\n", "clicked 2\n"):
        kernel.send_comm("comm_msg", comm_id=button, data={"method": "custom", "content": {"event": "click"}})
        content = kernel.hear(lambda kind, c: "outputs" in c.get("data", {}).get("state", {}))
        assert [output["text"] for output in content["data"]["state"]["outputs"]] == [text]
    kernel.run("%tfcluster stop")
    kernel.hear(lambda kind, c: "clicked 2" in c.get("data", {}).get("text/plain", ""))  # the saved form


def test_a_console_which_updates_nothing_gets_lines(kernel):
    kernel.run("%load_ext tfmagic")
    cell = (
        "%%tfcluster --workers 1\nimport matplotlib.pyplot as plt\nprint('a line')\n"
        "handle = display('first', display_id=True)\nhandle.update('second')\nplt.plot([1, 2]); plt.show()\n"
        "from ipywidgets import IntSlider\nIntSlider(value=7)"
    )
    shown = kernel.outputs(kernel.client.execute(cell, allow_stdin=True))  # as `jupyter console` does
    assert not [kind for kind, _ in shown if kind == "update_display_data"]
    assert len([c for kind, c in shown if "image/png" in c.get("data", {})]) == 1
    printed = "".join(c["text"] for kind, c in shown if kind == "stream")
    lines = [line[15:] for line in printed.splitlines() if line.startswith("[worker-0]:  ")]
    figure = "<Figure size 640x480 with 1 Axes>"
    assert lines == ["a line", "'first'", "'second'", figure, "IntSlider(value=7)"]
    refused = kernel.client.execute("%%tfcluster --view widget\n1", allow_stdin=True)
    assert "needs a notebook" in text_of(kernel.outputs(refused))


def test_the_rendered_error_is_the_users_own(kernel):
    kernel.run("%load_ext tfmagic")
    kernel.run("class MyError(Exception):\n    pass")
    shown = kernel.run("%%tfcluster --workers 2\ndef f(x):\n    raise MyError(f'bad {x}')\nf(1)")
    error = next(c for kind, c in shown if kind == "error")
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))
    assert error["ename"] == "MyError"
    assert "----> 3     raise MyError(f'bad {x}')" in text
    assert text.count("Cell In[3]") == 2 and "clusters.py" not in text
    assert "raised on worker-" in text


HALF = "\\ud8ff"  # of a surrogate pair, which no message of a kernel can hold


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (f"raise ValueError('bad {HALF}')", f"ValueError: bad {HALF}"),
        (f"error = KeyError(1)\nerror.add_note('note {HALF}')\nraise error", f"note {HALF}"),
        (f"raise ExceptionGroup('all {HALF}', [ValueError('{HALF}')])", f"all {HALF} (1 sub-exception)"),
        (f"try: 1 / 0\nexcept ZeroDivisionError: raise OSError('{HALF}')", f"OSError: {HALF}"),
        (f"code = compile('1 / 0', 'a{HALF}.py', 'exec')\nexec(code)", f"a{HALF}.py"),
        (f"raise KeyboardInterrupt('{HALF}')", "KeyboardInterrupt"),
    ],
)
def test_half_a_surrogate_pair_in_an_exception_is_escaped_and_the_cell_has_a_reply(kernel, cell, shown):
    kernel.run("%load_ext tfmagic")
    message = kernel.start(f"%%tfcluster --workers 1\n{cell}")
    errors = [c for kind, c in kernel.outputs(message) if kind == "error"]
    assert kernel.reply(message)["status"] == "error"
    assert shown in plain("\n".join(errors[0]["traceback"]))
    kinds = "(LookupError, ValueError, OSError, ArithmeticError, ExceptionGroup, KeyboardInterrupt)"
    run = f"get_ipython().run_cell_magic('tfcluster', '--view quiet', {cell!r})"
    assert "its own class" in kernel.text(f"try:\n    {run}\nexcept {kinds}: print('its own class')")


def test_an_interrupt_of_the_kernel_ends_the_cell_and_keeps_the_tasks(kernel):
    kernel.run("%load_ext tfmagic")
    kernel.run("%%tfcluster --workers 2\nkept = 1")
    cell = kernel.start(
        "%%tfcluster --view text\nimport time\nprint('spinning')\nwhile True:\n    time.sleep(0.01)"
    )
    kernel.outputs(cell, until=lambda o: "spinning" in o[1].get("text", ""))
    kernel.manager.interrupt_kernel()
    error = next(c for kind, c in kernel.outputs(cell) if kind == "error")
    assert error["ename"] == "KeyboardInterrupt"
    assert "kept is 1" in kernel.text("%%tfcluster\nprint('kept is', kept)")


@pytest.mark.soak  # test_cleanup kills and restarts kernels whose tasks have started processes
@pytest.mark.parametrize("way", ["shutdown", "restart", "kill"])
def test_no_process_outlives_its_kernel(kernel, way):
    kernel.run("%load_ext tfmagic")
    kernel.run("%tfcluster start --workers 2")
    pid = int(kernel.text("import os; print(os.getpid())"))
    (reaper,) = [p for p in psutil.Process(pid).children() if "reaper" in " ".join(p.cmdline())]
    everyone = [reaper.pid, *(c.pid for c in reaper.children(recursive=True))]
    assert len(everyone) == 4, "reaper, launcher and two tasks"
    if way == "restart":
        kernel.manager.restart_kernel(now=False)
    elif way == "kill":
        os.kill(pid, signal.SIGKILL)
    else:
        kernel.manager.shutdown_kernel(now=False)
    wait_until(lambda: not alive(everyone), ENDED_S)


@pytest.mark.parametrize("use_jedi", [True, False])
def test_tab_offers_only_our_words_in_a_kernel(kernel, use_jedi):
    kernel.run(f"%config IPCompleter.use_jedi = {use_jedi}\nworkload = workers = 1")
    kernel.run("import time\n%tfcluster start --workers 2")

    def tab(text, rest=""):
        reply = kernel.reply(kernel.client.complete(text + rest, len(text)))
        left = text[: reply["cursor_start"]]
        assert reply["cursor_end"] == len(text)
        return left, set(reply["matches"])

    assert tab("%tfcluster sta") == ("%tfcluster ", {"stacks", "start", "status"})
    left, options = tab("%%tfcluster --", rest="\nimport os")
    assert left == "%%tfcluster " and {"--workers", "--on"} < options
    assert all(option.startswith("--") for option in options)
    assert tab("%%tfcluster --on worker-0,work") == (
        "%%tfcluster --on worker-0,",
        {"worker", "worker-0", "worker-1"},
    )
    assert tab("%tfcluster kill wor") == ("%tfcluster kill ", {"worker", "worker-0", "worker-1"})
    assert tab("%tfcluster push workl") == ("%tfcluster push ", {"workload"})
    assert tab("%tfcluster logs zz") == ("%tfcluster logs ", {"zz"}), "nothing else, and no change"
    assert "workload" in tab("%%tfcluster --workers 2\nworkl")[1], "the body is Python"
    kernel.run("%config IPCompleter.use_jedi = True")


def test_the_magic_with_a_question_mark_is_its_help(kernel):
    for line in ("%%tfcluster?", "%tfcluster?"):
        message = kernel.client.execute(line)
        text = kernel.reply(message)["payload"][0]["data"]["text/plain"]
        assert "--workers N" in text and "show a table of the tasks" in text


def test_with_all_on_plain_cells_run_on_the_cluster(kernel):
    kernel.run("a, here = 5, []")
    assert "run on cluster default; %tfcluster all off" in kernel.text("%tfcluster all on --workers 2")
    kernel.run("%load_ext tfmagic")
    shown = kernel.text("b = a + 1\nimport tfmagic\ntfmagic.current_task().name")
    assert "'worker-0'" in shown and "'worker-1'" in shown
    shown = kernel.text("%%time\nc = b * a\nprint('c is', c)")
    assert shown.count("c is 30") == 2 and shown.count("Wall time") == 2
    name, text = kernel.error("b\nawait asyncio.sleep(0)\n1 / (b - 6)")
    assert name == "NameError" and re.search(r"-+> 2 await asyncio", text), text
    name, text = kernel.error("b\n1 / (b - 6)")
    assert name == "ZeroDivisionError" and re.search(r"-+> 2 1 / \(b - 6\)", text), text
    assert "raised on worker-" in text and "run_cell_magic" not in text
    assert kernel.error("%tb")[0] == "ZeroDivisionError", "the exception is the notebook's"
    kernel.client.execute("here.append('a program')", silent=True, store_history=False)
    assert "['a program'] False" in kernel.text("%tfcluster pull c\nprint(here, 'b' in globals())")
    kernel.run("%tfcluster all on --on worker-1")
    shown = kernel.text("tfmagic.current_task().name")
    assert "'worker-1'" in shown and "'worker-0'" not in shown
    assert "plain cells run in the notebook" in kernel.text("%tfcluster stop")
    assert kernel.text("print(a, here, c)") == "5 ['a program'] {'worker-0': 30, 'worker-1': 30}\n"
    kernel.run("%tfcluster all on --workers 1")
    kernel.unload()
    assert kernel.text("print(a)") == "5\n"


def test_with_all_on_the_history_is_that_of_the_notebook(kernel, tmp_path):
    kernel.run("%tfcluster all on --workers 1")
    count = next(c["execution_count"] for kind, c in kernel.run("a = 1") if kind == "execute_input")
    assert "[worker-0]:    2" in kernel.text("b = a + 1\nb")
    both = f"{count}-{count + 1}"
    assert kernel.text(f"%history {both}") == "a = 1\nb = a + 1\nb\n"
    assert kernel.text(f"history {both}") == "a = 1\nb = a + 1\nb\n", "automagic"
    for line in (f"%save {tmp_path}/saved.py {both}", f"save {tmp_path}/again.py {both}"):
        assert "were written to file" in kernel.text(line)
    for name in ("saved.py", "again.py"):
        assert (tmp_path / name).read_text().endswith("\na = 1\nb = a + 1\nb\n")
    kernel.run(f"%macro both {both}")
    assert "[worker-0]:    2" in kernel.text("both"), "a macro runs where plain cells run"
    shown = kernel.text(f"%rerun {count + 1}")
    assert "=== Executing: ===\nb = a + 1\nb\n" in shown and "[worker-0]:    2" in shown
    reply = kernel.reply(kernel.client.execute(f"%recall {count}"))
    assert reply["payload"][0] == {"source": "set_next_input", "text": "a = 1", "replace": False}
    reply = kernel.reply(kernel.client.execute(f"%load {tmp_path}/saved.py"))
    assert reply["payload"][0]["text"].endswith("a = 1\nb = a + 1\nb\n")
    kernel.run("history = 'mine'")
    assert "[worker-0]:    'mine'" in kernel.text("history"), "a variable of the task"


def test_with_all_off_plain_cells_run_in_the_notebook_again(kernel):
    kernel.run("%load_ext tfmagic\nhere = 1")
    assert "plain cells run in the notebook" in kernel.text("%tfcluster all off"), "none ran elsewhere"
    kernel.run("%tfcluster all on --workers 1")
    kernel.run("there = here + 1")
    for line in ("%tfcluster all off", "%tfcluster all"):
        assert kernel.text(line) == "tfmagic: plain cells run in the notebook\n"
    assert kernel.text("print(here, 'there' in globals())") == "1 False\n"
    assert "[worker-0]:    2" in kernel.text("%%tfcluster\nthere"), "the cluster goes on"


def test_a_console_is_told_which_cluster_runs_a_plain_cell(kernel):
    kernel.run("%load_ext tfmagic")
    kernel.run("%tfcluster all on --workers 1 --cluster mine")
    shown = text_of(kernel.outputs(kernel.client.execute("6 * 7", allow_stdin=True)))
    assert re.fullmatch(r"tfmagic: on cluster mine\n\[worker-0\]: +42\n", shown), shown
    assert "on cluster" not in kernel.text("6 * 7"), "a panel has the name"
    kernel.run("%tfcluster all off")
    shown = kernel.outputs(kernel.client.execute("6 * 7", allow_stdin=True))
    assert [c["data"]["text/plain"] for kind, c in shown if kind == "execute_result"] == ["42"]


def test_local_runs_an_awaited_and_a_detached_cell_in_the_notebook_as_well(kernel):
    kernel.run("%load_ext tfmagic")
    kernel.run(
        "%%tfcluster --workers 1 --local\nimport asyncio, os\nawait asyncio.sleep(0)\nown = os.getpid()\nx = 1"
    )
    here = int(kernel.text("print(own)"))
    assert here == kernel.manager.provisioner.pid
    assert f"[worker-0]:    {here}" not in kernel.text("%%tfcluster\nown")
    kernel.run("%%tfcluster --detach --local\nx = x + 40\nprint('both')")
    kernel.run("%tfcluster wait")
    assert kernel.text("print(x)") == "41\n"
    assert "[worker-0]:    41" in kernel.text("%%tfcluster\nx")


def test_the_kernel_that_jupyter_picks_up_has_the_extension_loaded():
    manager = KernelManager(kernel_name="tfmagic")
    manager.start_kernel(extra_arguments=["--IPKernelApp.log_level=40", "--TFCluster.warm=False"])
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        reply = client.execute_interactive("%tfcluster --help", timeout=60, output_hook=lambda m: None)
        assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def id_of(content):
    """Return the id of a comm, or of a display."""
    return content.get("comm_id") or content.get("transient", {}).get("display_id", "none")


def test_a_program_that_runs_notebooks_gets_one_line_of_the_start_and_each_output_once(kernel):
    """Nothing is updated: some of these programs keep every update as an output, others show none.

    What was printed of the start is for their log: it does not stay in the notebook.
    """
    kernel.run("%load_ext tfmagic")
    line = (
        "%%tfcluster --cluster slow --workers 1 --env OMP_NUM_THREADS=3"  # an import of TensorFlow for itself
    )
    outputs = kernel.outputs(kernel.start(f"{line}\nprint('here')"))
    begun = {"comm_open", "display_data"}  # else it is of the cell of another test, whose tasks have ended
    ids = {id_of(c) for kind, c in outputs if kind in begun}
    of_others = {"comm_msg", "comm_close", "update_display_data"}
    shown = [
        (kind, c)
        for kind, c in outputs
        if kind != "execute_input" and (kind not in of_others or id_of(c) in ids)
    ]
    kinds = [kind for kind, _ in shown if kind != "status"]
    assert set(kinds) == {"stream", "clear_output", "display_data"}, shown
    assert kinds[-2:] == ["clear_output", "display_data"]
    printed = "".join(c["text"] for kind, c in shown if kind == "stream" and c["name"] == "stdout")
    head = r"tfmagic: cluster slow \(1 worker\): "  # the first line is true, too, if no other follows
    assert re.fullmatch(rf"{head}starting, importing TensorFlow\n{head}1 of 1 ready, [\d.]+ s\n", printed)
    texts = [c["data"]["text/plain"] for kind, c in shown if kind == "display_data"]
    assert ["here" in text for text in texts] == [True]
