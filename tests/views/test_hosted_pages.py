"""What a hosted page such as Colab's needs, in a real kernel."""

import json

from doctoring import install
from kernels import text_of

CELL = "%%tfcluster --workers 1 --detach\nprint('hi')"


def _shown(outputs):
    return [kind for _, content in outputs for kind in content.get("data", {})]


def _printed(outputs):
    return json.loads("".join(content["text"] for kind, content in outputs if kind == "stream"))


def test_a_detached_cell_needs_no_widget_where_the_page_drops_messages_between_cells(kernel, tmp_path):
    """`google.colab` is not on PyPI: an empty package of that name stands for it."""
    (tmp_path / "google" / "colab").mkdir(parents=True)
    (tmp_path / "google" / "colab" / "__init__.py").touch()
    kernel.run("%load_ext tfmagic")
    plain = kernel.outputs(kernel.start(CELL, stdin=True))
    assert "application/vnd.jupyter.widget-view+json" in _shown(plain)
    kernel.run("%tfcluster wait")
    kernel.run(f"import sys\nsys.path.append({str(tmp_path)!r})\nimport google.colab")
    kernel.run("import os, time")
    hosted = kernel.start(
        CELL + f"\nimport os\nwhile not os.path.exists({str(tmp_path / 'go')!r}): pass", stdin=True
    )
    begun = kernel.outputs(hosted)
    assert "text/html" in _shown(begun)
    assert "application/vnd.jupyter.widget-view+json" not in _shown(begun)
    (tmp_path / "go").touch()
    ended = kernel.hear(lambda kind, content: kind == "update_display_data" and "1 of 1 done" in str(content))
    assert "[worker-0]:    hi" in ended["data"]["text/plain"]
    kernel.run(f"del sys.modules['google.colab']; sys.path.remove({str(tmp_path)!r})")


def test_json_of_a_wait_is_all_that_it_prints(kernel, tmp_path):
    """Without an input box, the lines of a cell of more than a second are printed as they come."""
    go = str(tmp_path / "go")
    kernel.run("%load_ext tfmagic")
    cell = f"import os, time\nwhile not os.path.exists({go!r}): print('a line', flush=True); time.sleep(0.01)"
    kernel.run(f"%%tfcluster --workers 1 --detach\n{cell}")
    assert _printed(kernel.run("%tfcluster wait --timeout 2 --json"))["state"] == "running"
    (tmp_path / "go").touch()
    assert _printed(kernel.run("%tfcluster wait --json"))["state"] == "done"


def test_a_kernel_whose_packages_were_replaced_is_told_to_restart(kernel, tmp_path):
    """The metadata in a folder before the others is what an installer leaves of another version."""
    kernel.run("import sys, tblib")
    path = install(tmp_path / "site", tblib="99.0")
    kernel.run(f"sys.path.insert(0, {path!r})")
    told = text_of(kernel.run("%unload_ext tfmagic\n%load_ext tfmagic"))
    assert "tfmagic: tblib (" in told and "99.0 is installed) was replaced while this kernel ran" in told
    assert "restart the kernel" in told
    extension = "sys.modules['tfmagic.frontends.notebook.extension']"
    kernel.run(
        f"import tfmagic; old = {extension}; {extension} = None"
    )  # as where an import needs what is new
    name, shown = kernel.error("tfmagic.load_ipython_extension(get_ipython())")
    assert name == "ImportError" and "ImportError: tblib (" in shown and "restart the kernel" in shown
    kernel.run(f"{extension} = old; del sys.path[0]")
