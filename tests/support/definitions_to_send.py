"""Definitions as notebooks have them; `test_definitions` runs this file as its ``__main__``."""

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
from typing import Generic, NamedTuple, NewType, ParamSpec, Protocol, TypedDict, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
UserId = NewType("UserId", int)
Old = collections.namedtuple("Old", "a b", defaults=[3])
k = 10


class Planet(enum.Enum):
    MERCURY = (3.3e23, 2.4e6)
    EARTH = (5.9e24, 6.3e6)

    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius

    @property
    def g(self):
        return self.mass / self.radius


class Coord(bytes, enum.Enum):
    def __new__(cls, value, label):
        made = bytes.__new__(cls, [value])
        made._value_, made.label = value, label
        return made

    PX = (0, "P.X")
    PY = (1, "P.Y")

    def __repr__(self):
        return f"<{self.name}>"


class Color(enum.Enum):
    RED = 1
    CRIMSON = 1
    BLUE = enum.auto()


class Perm(enum.Flag):
    R = 4
    W = 2
    X = 1
    RWX = 7


class Num(enum.IntEnum):
    A = 1
    B = 2


class Name(str, enum.Enum):
    A = "a"
    B = "b"


class Text(enum.StrEnum):
    A = enum.auto()
    B = enum.auto()


class Missing(enum.Enum):
    A = 1

    @classmethod
    def _missing_(cls, value):
        return cls.A


class Auto(enum.Enum):
    @staticmethod
    def _generate_next_value_(name, start, count, last):
        return name.lower()

    X = enum.auto()
    Y = enum.auto()


class Operator(enum.Enum):
    ADD = enum.member(lambda a, b: a + b)
    OTHER = enum.nonmember(5)

    def __call__(self, *args):
        return self.value(*args)


class Stack(Generic[T]):
    def __init__(self, top: T):
        self.top = top
        self.added = k


class Readable(Protocol):
    def read(self) -> bytes: ...


class Pair(NamedTuple):
    a: int
    b: str = "x"


class Options(TypedDict):
    a: int


@dataclasses.dataclass(order=True, frozen=True)
class Point:
    a: int
    b: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Slotted:
    a: int = 1


class Meta(type):
    def __new__(cls, name, bases, space, **options):
        made = super().__new__(cls, name, bases, space)
        made.meta = options
        return made

    def __init__(cls, name, bases, space, **options):
        super().__init__(name, bases, space)


class Tagged(metaclass=Meta, tag=3):
    pass


class Base:
    known = {}

    def __init_subclass__(cls, key=None, **options):
        super().__init_subclass__(**options)
        cls.known[cls.tag] = key


class Registered(Base, key="yes"):
    tag = "t"


class Abstract(abc.ABC):
    @abc.abstractmethod
    def f(self): ...


Abstract.register(int)


class Concrete(Abstract):
    def f(self):
        return super().f.__qualname__


class Slots:
    __slots__ = ("__weakref__", "a")


class Descriptor:
    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        return self.name


class Described:
    d = Descriptor()


class Decorated:
    @functools.cached_property
    def x(self):
        return 5

    @functools.lru_cache(maxsize=3)  # noqa: B019
    def y(self):
        return 6

    @functools.singledispatchmethod
    def z(self, a):
        return "object"

    @z.register
    def _(self, a: int):
        return "int"

    @property
    def p(self):
        return 7


class NamedProperty:
    @property
    def p(self):
        return 7

    def fail(self):
        try:
            self.p = 3
        except AttributeError as error:
            return str(error)


@functools.singledispatch
def dispatched(a):
    return "object"


@dispatched.register
def _(a: int):
    return "int"


@functools.total_ordering
class Ordered:
    def __init__(self, a):
        self.a = a

    def __lt__(self, other):
        return self.a < other.a

    def __eq__(self, other):
        return self.a == other.a

    __hash__ = None


@functools.cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def make_counter():
    count = 0

    def counter():
        nonlocal count
        count += 1
        return count

    return counter


counter = make_counter()


def add_k(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args) + k

    return inner


@add_k
def wrapped(x):
    return x


class Coded(ValueError):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


coded = Coded(3)


@contextlib.contextmanager
def managed():
    yield k


table = {"double": lambda x: x * k, "both": [len, lambda x: x + k]}
