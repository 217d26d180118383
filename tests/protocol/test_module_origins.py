"""Paths of sources that an agent has unpacked are shown as those of the notebook's machine."""

import pytest

from tfmagic.protocol.module_origins import original_path

UNPACKED = "/state/runs/20261124-a/modules-0123456789abcdef"


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (f"{UNPACKED}/home/me/code.py", "/home/me/code.py"),
        (f"/runs/x{UNPACKED}/home/me/code.py", "/home/me/code.py"),
        (f"/odd\nname{UNPACKED}/home/me/code.py", "/home/me/code.py"),
        ("/home/runs/me/code.py", "/home/runs/me/code.py"),
        ("Cell In[3]", "Cell In[3]"),
        (UNPACKED, UNPACKED),
    ],
)
def test_the_folder_of_an_agent_is_left_out(file, shown):
    assert original_path(file) == shown


def test_a_name_of_any_length_takes_no_time_to_speak_of():
    """A search from each place of the name took minutes for a megabyte, with the GIL held."""
    for name in ("x" * 1_000_000, "/runs/" * 200_000, "/runs/x" * 150_000):
        assert original_path(name) == name
