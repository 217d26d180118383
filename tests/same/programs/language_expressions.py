"""Python's language reference: lexical analysis and expressions."""

# %% numbers and strings are shown as they are
print(0b1010, 0o17, 0xFF, 1_000_000, 1e-3, 3j)
print(r"a\tb", "a\\b", b"\x00\xff", "π ≈ 3.14", "日本語", "🎉")
(10**50, 2**-1, 7 // -2, -7 % 3, divmod(-7, 3), round(2.5), 0.1 + 0.2)

# %% f-strings
name, value, width = "x", 3.14159, 10
print(f"{name!r:>{width}}|{value:.2f}|{value=:.1f}|{ {'a': 1}['a'] }|{{}}")
f"{name}" "joined" f'{"nested"}'

# %% the last of several expressions is the value
1
"two"
[3]

# %% a semicolon hides the value
"hidden";

# %% None is not shown
None

# %% an empty string is a value
""

# %% False is a value
False

# %% a string with quotes, backslashes and lines
"it's a \"test\" \\ of\nlines\tand tabs"

# %% comprehensions do not leave their names
squares = [i * i for i in range(5) if i % 2]
pairs = {(a, b): a * b for a in range(3) for b in range(a)}
unique = {c for c in "hello"}
total = sum(x for x in squares)
squares, pairs, sorted(unique), total

# %% the walrus in a comprehension leaves its name
values = [y := 1, y**2, y + 5]
any((last := number) > 2 for number in [1, 2, 3, 4])
last

# %% lambda with defaults and keywords
add = lambda a, b=2, *rest, c=3, **more: (a, b, rest, c, more)
add(1), add(1, 5, 6, c=7, d=8)

# %% a lambda inside a lambda reads a name of the cell
factor = 10
make = lambda n: (lambda x: x * n * factor)
make(2)(3)

# %% slices and unpacking
first, *middle, (last, _unused) = [1, 2, 3, (4, 5)]
text = "abcdefgh"
print(first, middle, last, text[::-2], text[2:5], [*middle, *"ab"], {**{"a": 1}, "b": 2})

# %% chained comparison and boolean values
calls = []
def side(x):
    calls.append(x)
    return x
print(side(1) < side(2) < side(3), side(5) < side(4) < side(6), calls)
print(0 or [] or "last", 1 and {} and "never", not None, 1 if calls else 2)

# %% a conditional expression as the last value
n = 7
"odd" if n % 2 else "even"

# %% a generator expression as the last value
sum((i for i in range(10)))

# %% bitwise operators and precedence
~5, 6 & 3, 6 | 3, 6 ^ 3, 1 << 4, -(2**2), 2**-1**2, not 1 == 2

# %% set and dict operators
{1, 2} | {3}, {1, 2} & {2}, {"a": 1} | {"b": 2}, {1, 2, 3} >= {1}

# %% Ellipsis, NotImplemented and types as values
print(..., NotImplemented, type(...), type(None))
int

# %% a long list is shown as IPython shows it
list(range(1200))

# %% a nested dictionary is wrapped as IPython wraps it
{"layer_%d" % i: {"weights": [0.1 * i] * 5, "name": "x" * 20} for i in range(6)}

# %% a set is sorted as IPython sorts it
{"pear", "apple", "fig", 3.5} - {3.5}

# %% a dictionary of sets and tuples
{(1, 2): {3, 4}, frozenset([1]): [None, True], "": ()}

# %% a recursive list
a = [1]
a.append(a)
a

# %% a sum of seven hundred terms
total = 0 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9
exec("total = " + " + ".join(map(str, range(700))))
total

# %% yield outside of a function
yield 5

# %% a value whose repr has several lines
class Matrix:
    def __repr__(self):
        return "Matrix(\n  1 0\n  0 1\n)"
Matrix()

# %% a value whose repr raises
class Broken:
    def __repr__(self):
        raise ValueError("no repr")
Broken()

# %% a value whose repr is no string
class Odd:
    def __repr__(self):
        return 5
Odd()

# %% a value with an HTML form
class Rich:
    def __repr__(self):
        return "Rich()"
    def _repr_html_(self):
        return "<b>rich</b>"
Rich()

# %% a value with a markdown, a latex and a json form
class Many:
    def _repr_markdown_(self):
        return "**many**"
    def _repr_latex_(self):
        return "$x$"
    def _repr_json_(self):
        return {"a": [1]}
    def __repr__(self):
        return "Many()"
Many()

# %% a value with a mime bundle
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "bundle", "text/html": "<i>bundle</i>"}
Bundle()

# %% a value that displays itself
class Shows:
    def _ipython_display_(self):
        print("shown by itself")
Shows()

# %% the last value is in the underscore of the next cell
6 * 7
# %%
_ + 1

# %% the last three values
"a"
# %%
"b"
# %%
"c"
# %%
(_, __, ___)

# %% the underscore is kept where a cell has no value
5
# %%
x = 1
# %%
_

# %% the underscore of the user's own
_ = "mine"
"value"
# %%
_

# %% the numbered outputs
"first value"
# %%
list(Out.values())[-1]

# %% the text of this cell is in In
marker = "here"
In[-1].splitlines()[-2:]
# %%
In[-2].splitlines()[-2:], _i.splitlines()[-1]
