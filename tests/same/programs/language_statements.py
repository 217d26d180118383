"""Python's language reference: simple and compound statements."""

# %% assignment in all its forms
a = b = [1]
a += [2]
x: int = 5
y: str
(c, d), e = (1, 2), 3
obj = type("Obj", (), {})()
obj.attr, lst = 1, [0, 0, 0]
lst[1:] = [8, 9]
print(a is b, b, c, d, e, obj.attr, lst, __annotations__)

# %% del takes a name away
gone, kept = 1, 2
del gone
gone

# %% assert with a message
size = 3
assert size == 4, f"size is {size}"

# %% raise from
try:
    {}["key"]
except KeyError as error:
    raise RuntimeError("no such thing") from error

# %% raise from None
try:
    {}["key"]
except KeyError:
    raise RuntimeError("no such thing") from None

# %% raise while another is handled
try:
    {}["key"]
except KeyError:
    int("x")

# %% raise of a class of the cell
class ConfigError(Exception):
    def __init__(self, key, reason="missing"):
        super().__init__(f"{key} is {reason}")
        self.key = key
raise ConfigError("rate", reason="negative")

# %% an exception with notes
error = ValueError("bad")
error.add_note("a note")
error.add_note("another")
raise error

# %% an exception group
def parts():
    raise ExceptionGroup("several", [ValueError("one"), TypeError("two"), ExceptionGroup("inner", [KeyError("k")])])
parts()

# %% except star
try:
    raise ExceptionGroup("g", [ValueError(1), TypeError(2), OSError(3)])
except* ValueError as group:
    print("values", group.exceptions)
except* OSError as group:
    print("os", group.exceptions)

# %% finally and else in their order
def run(fail):
    try:
        if fail:
            raise ValueError
        print("body")
    except ValueError:
        print("except")
        return "from except"
    else:
        print("else")
        return "from else"
    finally:
        print("finally")
run(True), run(False)

# %% for with else, while with else, break and continue
for n in range(2, 12):
    for d in range(2, n):
        if n % d == 0:
            break
    else:
        print(n, "is prime")
while True:
    n -= 1
    if n % 2:
        continue
    if n < 5:
        break
else:
    print("never")
n, d

# %% match of values, sequences, mappings and classes
from dataclasses import dataclass
@dataclass
class Point:
    x: int
    y: int
def tell(value):
    match value:
        case 0 | 1:
            return "bit"
        case int(n) if n > 100:
            return f"large {n}"
        case [a, b, *rest]:
            return f"list {a} {b} {rest}"
        case {"kind": kind, **more}:
            return f"dict {kind} {more}"
        case Point(x=0, y=y):
            return f"on the axis at {y}"
        case str() as text:
            return f"text {text}"
        case None:
            return "none"
        case _:
            return "something"
[tell(v) for v in (0, 1000, [1, 2, 3], {"kind": "k", "z": 1}, Point(0, 5), Point(1, 1), "s", None, 3.5)]

# %% with of several context managers
from contextlib import contextmanager
@contextmanager
def room(name):
    print("enter", name)
    try:
        yield name.upper()
    finally:
        print("leave", name)
with (room("a") as a, room("b") as b):
    print(a, b)
with room("c"):
    raise ValueError("inside")

# %% global and nonlocal
count = 0
def outer():
    inner_count = 0
    def inner():
        nonlocal inner_count
        global count
        inner_count += 1
        count += 10
        return inner_count
    inner()
    return inner()
outer(), count

# %% a name that is local is not the global one
level = 1
def shadow():
    print(level)
    level = 2
shadow()

# %% an import in all its forms
import os.path, json as j
from math import pi as PI, sqrt
from collections import *
print(os.path.basename("a/b"), j.dumps([1]), round(PI, 2), sqrt(16), Counter("aab"))

# %% an import that fails
import no_such_module_anywhere

# %% an import of a name that is not there
from math import no_such_name

# %% future annotations hold in the cell
from __future__ import annotations
def f(x: Undefined) -> AlsoUndefined:
    return x
f.__annotations__

# %% future annotations hold in the next cell
from __future__ import annotations
# %%
def g(x: NotThere):
    return x
g.__annotations__

# %% exec and eval in the cell's namespace
exec("made = 5")
eval("made * 2"), eval("a + 1", {"a": 2})

# %% compile and its code object
code = compile("result = [k for k in 'ab']", "<made>", "exec")
exec(code)
result, code.co_filename

# %% globals and locals at the top of a cell
here = 1
print(globals() is locals(), globals()["here"], "here" in vars(), __name__)

# %% return outside of a function
x = 1
return 5

# %% break outside of a loop
if True:
    break

# %% an unfinished string
text = "abc
print(text)

# %% an unclosed bracket
values = [1, 2,
print(values)

# %% a wrong indentation
def f():
    x = 1
      y = 2
    return x

# %% a tab where blanks were
if True:
        a = 1
	b = 2

# %% a keyword as a name
class = 5

# %% assignment to a literal
x = 1
5 = x

# %% f-string that does not parse
a = f"{1 +}"

# %% positional after keyword
print(sep="", "x")

# %% nonlocal at the top
def f():
    nonlocal missing
    missing = 1

# %% an await outside of an async function
def f():
    await g()

# %% two arguments with the same name
def f(a, a):
    pass

# %% is with a literal warns
x = 5
x is 5

# %% an invalid escape warns
text = "\d+"
text

# %% an assertion that is always true warns
assert (1, "message")

# %% a syntax error in an exec
exec("a = = 1")

# %% a name that is not there
def calls():
    return undefined_name + 1
calls()

# %% an attribute that is not there
import math
math.floor_of

# %% a type error with its line
def mean(values):
    return sum(values) / len(values)

numbers = [1, 2, "3"]
mean(numbers)

# %% an error several calls deep
def a(n):
    return b(n - 1)
def b(n):
    if n < 0:
        raise RecursionError("enough")
    return a(n - 1)
a(5)

# %% an endless recursion
def down(n):
    return down(n + 1)
down(0)

# %% an error in a comprehension
[10 // k for k in (2, 1, 0)]

# %% an error in a lambda of another line
broken = lambda x: x.missing
list(map(broken,
         [1, 2]))

# %% an error in a multi-line call
def takes(a, b, c):
    return a + b + c
takes(1,
      2,
      "3")

# %% an error while a class is made
class Broken:
    x = 1
    y = undefined_in_class

# %% an error in a decorator
def needs_int(fn):
    raise TypeError("not here")
@needs_int
def f():
    pass

# %% an error in a with statement's exit
class Exit:
    def __enter__(self):
        return self
    def __exit__(self, *_):
        raise OSError("on exit")
with Exit():
    print("inside")

# %% what was printed and bound before an error stays
print("before")
bound = 1
raise LookupError("then")
print("after")
# %%
bound

# %% StopIteration of a cell
next(iter([]))

# %% KeyError shows its key
{"a": 1}["b"]

# %% OSError with its number and file
open("/no/such/folder/file.txt")

# %% UnicodeDecodeError
b"\xff\xfe".decode("utf-8")

# %% sys.exit with a number
import sys
print("leaving")
sys.exit(3)

# %% sys.exit with zero
import sys
sys.exit(0)

# %% sys.exit with a message
import sys
sys.exit("nothing to do")

# %% raise SystemExit
raise SystemExit

# %% KeyboardInterrupt raised by the cell
raise KeyboardInterrupt("by hand")

# %% an exception that is an instance of BaseException alone
class Stop(BaseException):
    pass
raise Stop("base")

# %% an exception without arguments
raise ValueError

# %% raising what is no exception
raise "text"

# %% an exception whose str raises
class Bad(Exception):
    def __str__(self):
        raise RuntimeError("no text")
raise Bad(1)

# %% an exception whose constructor takes other arguments
class Http(Exception):
    def __init__(self, status, *, url):
        super().__init__(f"{status} for {url}")
        self.status, self.url = status, url
raise Http(404, url="http://example")

# %% an exception with an attribute that cannot be pickled
import threading
class Locked(Exception):
    pass
error = Locked("with a lock")
error.lock, error.code = threading.Lock(), 7
raise error

# %% an exception whose getattr raises
class Odd(Exception):
    def __getattr__(self, name):
        raise KeyError(name)
raise Odd("odd")

# %% an except clause takes its name away
try:
    1 / 0
except ZeroDivisionError as error:
    pass
error

# %% print_exc says where
import traceback
def fails():
    raise ValueError("told")
try:
    fails()
except ValueError:
    print(traceback.format_exc().splitlines()[-1])
    print([frame.lineno for frame in traceback.extract_tb(__import__("sys").exc_info()[2])])

# %% print_exc as a whole
import traceback
def fails():
    raise ValueError("told")
try:
    fails()
except ValueError:
    traceback.print_exc(file=__import__("sys").stdout)

# %% an elif chain of nine hundred
exec("def pick(n):\n    if n == 0:\n        return 0\n" + "".join(f"    elif n == {i}:\n        return {i}\n" for i in range(1, 900)))
pick(899)

# %% an empty cell

# %% a cell of comments only
# nothing happens here
# or here

# %% a cell that ends in a comment
x = 4
x  # shown

# %% a cell that ends in a docstring
"""some text
over lines"""

# %% blank lines before and after

y = 2


y


# %% line continuation
total = 1 + \
    2 + \
    3
total

# %% several statements in a line
a = 1; b = 2; a + b

# %% an if as the last statement shows nothing
if True:
    "not shown"

# %% a for as the last statement shows nothing
for i in range(3):
    i
i

# %% frames in a traceback: parameters of every kind, methods, deleted ones
class Model:
    def fit(self, data, /, rate=0.1, *more, epochs, **options):
        steps = len(data)
        del rate
        return self.Inner().step(steps, *more, **options)
    class Inner:
        def step(self, n, *parts, key=None):
            return (lambda part, by=0: part / by)(n)
Model().fit([1, 2], 0.5, 3, epochs=2, key=4)

# %% frames in a traceback: a generator, a comprehension, a class body and a closure
def outer(limit):
    def each(n):
        for i in range(n):
            yield limit / (n - i - 1)
    return [value for value in each(3)]
class Body:
    value = outer(1)

# %% frames in a traceback: a frozen module and code without source
import os
os.environ["NO_SUCH_NAME"]
# %%
import importlib
importlib.import_module("no_such_module_here")
# %%
exec("def made(t):\n    return t / 0\nmade(5)")
# %%
from dataclasses import dataclass
@dataclass
class Point:
    x: int
    def __post_init__(self):
        raise ValueError(self.x)
Point(1)
