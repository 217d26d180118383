"""What IPython adds to a cell: magics, shell commands, displays and help."""

# %% a shell command
!echo hello $((2 + 3))

# %% a shell command with a variable of the cell
word = "spoken"
!echo {word} $word

# %% the output of a shell command
lines = !printf 'a\nb\n'
lines, lines.n

# %% a shell command that fails
!exit 3
_exit_code

# %% line magics
%env HOME
# %%
x = %env HOME
isinstance(x, str)

# %% the time magic gives its value
%time y = sum(range(10))
y

# %% the timeit magic with an object
_result = %timeit -n 1 -r 1 -o -q sum(range(10))
_result.loops

# %% a cell magic inside: capture
%%capture out
print("captured")
5
# %%
out.stdout

# %% a cell magic inside: time
%%time
z = 3
print("timed")

# %% a cell magic inside: bash
%%bash
echo from bash
for i in 1 2; do echo $i; done

# %% a cell magic inside: writefile
%%writefile written.txt
line one
line two
# %%
open("written.txt").read()

# %% a magic that is not there
%no_such_magic 5

# %% a cell magic that is not there
%%no_such_cell_magic
1

# %% who lists the names
a = 1
b = "x"
%who

# %% help with a question mark
def helped(x):
    """Words about helped."""
helped?

# %% display of text, html and several things
from IPython.display import HTML, Markdown, display
print("before")
display("plain", [1, 2])
display(HTML("<b>bold</b>"), Markdown("*it*"))
print("after")

# %% display of raw data
from IPython.display import display
display({"text/plain": "raw", "application/json": {"a": 1}}, raw=True)

# %% display with an id, updated
from IPython.display import display
handle = display("first", display_id="same-handle")
handle.update("second")

# %% display of an image from bytes
from IPython.display import Image
import base64
Image(base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="))

# %% display of latex, svg, json and javascript
from IPython.display import JSON, SVG, Javascript, Latex, display
display(Latex("$x^2$"), SVG("<svg xmlns='http://www.w3.org/2000/svg'></svg>"), JSON({"a": 1}), Javascript("1"))

# %% clear_output
from IPython.display import clear_output
print("gone")
clear_output()
print("stays")

# %% clear_output in a loop
from IPython.display import clear_output
for i in range(3):
    clear_output(wait=True)
    print("step", i)

# %% a progress bar of carriage returns
import sys
for i in range(3):
    sys.stdout.write(f"\rstep {i}")
sys.stdout.write("\n")

# %% colours
print("\x1b[31mred\x1b[0m and plain")

# %% backspaces and bells
print("abc\b\bX")

# %% a very long line
print("x" * 5000)

# %% many lines
for i in range(500):
    print(i)

# %% no newline at the end, twice
print("a", end="")
print("b", end="")
# %%
print("c", end="")

# %% unicode of all kinds
print("ümläut 日本語 🎉 👨\u200d👩 | e\u0301 |")

# %% bytes that are no text
import os
n = os.write(1, b"\xff\xfe bytes\n")

# %% automatic call and reload are off
f = len
f([1, 2])

# %% automagic: two lines are no magic without its sign
alias_magic --help
1

# %% get_ipython is there
_ip = get_ipython()
_ip.user_ns["injected"] = 5
injected

# %% run_cell and run_line_magic from code
_ip = get_ipython()
_ip.run_line_magic("env", "HOME") != ""

# %% the interactivity setting
%config InteractiveShell.ast_node_interactivity = "all"
# %%
1
2
# %%
%config InteractiveShell.ast_node_interactivity = "last_expr"

# %% a formatter of the user's own
class Temperature:
    def __init__(self, c): self.c = c
_f = get_ipython().display_formatter.formatters["text/plain"]
_f.for_type(Temperature, lambda t, p, cycle: p.text(f"{t.c} °C"))
Temperature(20)

# %% precision of floats
%precision 3
# %%
3.14159265
# %%
%precision

# %% a magic of the user's own
from IPython.core.magic import register_line_magic
@register_line_magic
def shout(line):
    return line.upper()
%shout quiet words

# %% an alias and a shell assignment
%alias say echo said
%say this

# %% load and run a file
from pathlib import Path
Path("ran.py").write_text("print('ran as', __name__)\nfrom_file = 7\n")
%run ran.py
# %%
from_file

# %% cd changes the folder, for the next cell, too
import os
os.makedirs("deeper", exist_ok=True)
%cd -q deeper
# %%
import os
here = os.path.basename(os.getcwd())
%cd -q ..
here

# %% matplotlib inline
%matplotlib inline

# %% a widget
import ipywidgets
ipywidgets.IntSlider(value=3)
