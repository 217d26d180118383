"""docs/inside.md names each thread and each helper process that the code starts, and each word is one of the code."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tfmagic"
PAGE = (ROOT / "docs" / "inside.md").read_text("utf-8")
STARTS = {"Thread", "ThreadPoolExecutor", "Timer", "start_in_lasting_thread", "start_killed_with_us"}
LESSONS = "features/course/"  # their code is that of the learner


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]


def name_of(node):
    return getattr(node, "attr", getattr(node, "id", ""))


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        if not place.startswith(LESSONS) and "templates/" not in place:
            yield place, path.read_text("utf-8")


def starting_modules():
    """Return the modules that start threads."""
    found = set()
    for place, text in modules():
        for node in ast.walk(ast.parse(text)):
            starts = isinstance(node, ast.Call) and name_of(node.func) in (
                "Thread",
                "ThreadPoolExecutor",
                "Timer",
            )
            if starts or (isinstance(node, ast.ClassDef) and "Thread" in map(name_of, node.bases)):
                found.add(place)
    return found


def thread_names():
    """Return the names in calls that start threads, the last part of a composed one left out."""
    found = set()
    for _, text in modules():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and (
                name_of(node.func) in STARTS or name_of(node.func) == "__init__"
            ):
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                found |= {
                    v.value
                    for v in given
                    if isinstance(v, ast.Constant) and str(v.value).startswith("tfmagic-")
                }
    return found


def test_each_module_that_starts_threads_is_in_the_table():
    named = set(re.findall(r"`([a-z_0-9/]+\.py)`", section("Threads")))
    assert named == starting_modules()


def test_each_name_of_a_thread_is_in_the_table():
    named = set(re.findall(r"`(tfmagic-[a-z-]+)", section("Threads")))
    assert thread_names() and thread_names() <= named
    texts = "".join(text for _, text in modules())
    assert [name for name in named if f'"{name}' not in texts] == []


def test_each_place_that_starts_processes_is_named():
    starts = re.compile(r"\b(?:start_interpreter|start_in_lasting_thread|start_killed_with_us|os\.fork)\(")
    found = {place for place, text in modules() if starts.search(text)}
    _, _, places = section("Processes").partition("are started in")
    assert set(re.findall(r"`([a-z_0-9/]+\.py)`", places)) == found


def test_each_process_has_its_program():
    for name in re.findall(r"`tfmagic/([a-z_0-9/]+\.py)`", section("Processes")):
        assert (PACKAGE / name).is_file(), name


def test_each_record_of_a_cell_is_where_the_table_says():
    rows = re.findall(r"^\| (`.+`) \| `(\S+\.py)` \|", section("Records of a cell"), re.MULTILINE)
    assert len(rows) > 12
    for names, place in rows:
        text = (PACKAGE / place).read_text()
        assert [name for name in re.findall(r"`(\w+)`", names) if f"class {name}" not in text] == []


def test_each_word_is_one_of_the_code():
    code = "".join(text for _, text in modules())
    words = re.findall(r"`([A-Z]\w+)`", section("Words") + section("Records of a cell"))
    assert (
        len(words) > 12
        and [word for word in words if f"class {word}" not in code and f"{word} =" not in code] == []
    )
