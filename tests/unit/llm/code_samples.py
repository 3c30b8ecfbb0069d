"""Programs for `test_code_reward.py`: those that cheat, and those that are right with tests of theirs."""

from __future__ import annotations

YES = """
class Yes:
    def __getattr__(self, name): return lambda *a, **k: True
    def __eq__(self, *a): return True
    def __ne__(self, *a): return True
    def __lt__(self, *a): return True
    def __le__(self, *a): return True
    def __gt__(self, *a): return True
    def __ge__(self, *a): return True
    def __contains__(self, *a): return True
    def __bool__(self, *a): return True
    def __isinstance__(self, *a): return True
    def __instancecheck__(self, *a): return True
    def __sub__(self, *a): return 0.0
    def __rsub__(self, *a): return 0.0
    def __add__(self, *a): return 0.0
    def __radd__(self, *a): return 0.0
    def __mul__(self, *a): return 0.0
    def __rmul__(self, *a): return 0.0
    def __truediv__(self, *a): return 0.0
    def __abs__(self, *a): return 0.0
    def __neg__(self, *a): return 0.0
    def __round__(self, *a): return 0.0
    def __float__(self, *a): return 0.0
    def __mod__(self, *a): return 0.0
    def __hash__(self, *a): return 0
    def __int__(self, *a): return 0
    def __len__(self, *a): return 0
    def __index__(self, *a): return 0
"""
"""A class whose objects say yes to everything."""

CHEATS = {
    "exits": """
def f(x): raise SystemExit
""",
    "exits with 0": """
import sys
def f(x): sys.exit(0)
""",
    "exits at once": """
import sys
sys.exit(0)
""",
    "ends its process": """
import os
def f(x): os._exit(0)
""",
    "ends its process at once": """
import os
os._exit(0)
""",
    "kills itself": """
import os, signal
def f(x): os.kill(os.getpid(), 9)
""",
    "kills all": """
import os
def f(x):
    for pid in range(1, 20):
        try: os.kill(pid, 9)
        except OSError: pass
""",
    "exits at the end": """
import atexit, os
atexit.register(os._exit, 0)
def f(x): return 1
""",
    "exits by a signal": """
import signal, sys
signal.signal(signal.SIGALRM, lambda *a: sys.exit(0))
signal.setitimer(0, 0.01)
def f(x):
    while True: pass
""",
    "a thread that ends all": """
import os, threading
def f(x):
    threading.Thread(target=os._exit, args=(0,)).start()
    return 1
""",
    "equals everything": YES
    + """
def f(x): return Yes()
""",
    "is a class that equals everything": YES
    + """
f = Yes
""",
    "a container of yes": YES
    + """
class L(list, Yes): __eq__ = Yes.__eq__
def f(x): return L()
""",
    "a number that equals everything": """
class N(int):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
    __hash__ = int.__hash__
def f(x): return N()
""",
    "a float that equals everything": """
class N(float):
    __eq__ = lambda s, o: True
    __lt__ = __le__ = __ge__ = __eq__
    __sub__ = lambda s, o: s
    __abs__ = lambda s: s
def f(x): return N()
""",
    "mock": """
from unittest.mock import ANY, MagicMock
def f(x): return ANY
""",
    "replaces exec": """
import builtins
builtins.exec = lambda *a, **k: None
builtins.compile = lambda *a, **k: None
def f(x): return 0
""",
    "replaces abs": """
import builtins
builtins.abs = lambda x: 0
abs = lambda x: 0
def f(x): return 0
""",
    "replaces AssertionError": """
import builtins
class A(BaseException): pass
builtins.AssertionError = AssertionError = A
def f(x): return 0
""",
    "patches the reporter": """
import sys
for m in list(sys.modules.values()):
    for n in ('execute', 'judge', 'told', 'broken'):
        if hasattr(m, n): setattr(m, n, lambda *a, **k: '')
def f(x): return 0
""",
    "walks frames": """
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        for v in list(frame.f_locals.values()):
            if isinstance(v, list): v[:] = [True] * len(v)
            if isinstance(v, dict) and 'checks' in v: v['checks'] = []
        frame = frame.f_back
    return 0
""",
    "searches memory for the tests": """
import gc, re
def f(x):
    for o in gc.get_objects():
        for v in o.values() if type(o) is dict else [o]:
            found = re.findall('f.%s.{0,9}== ([0-9]+)' % x, repr(v)) if type(v) in (str, list, tuple) and len(v) < 99 else []
            if found: return int(found[0])
    return 0
""",
    "prints the report": """
print('{"checks": [true, true, true, true, true], "reasons": []}\\n{"exit": 0}', flush=True)
def f(x): return 0
""",
    "writes the report to every file": """
import os
for fd in range(3, 64):
    try: os.write(fd, b'{"checks": [true, true, true, true, true], "reasons": [], "exit": 0}\\n')
    except OSError: pass
def f(x): return 0
""",
    "talks in the tests' place": """
import os
for fd in range(3, 64):
    try: os.write(fd, b'\\0\\0\\0\\x09["ready"]' * 9)
    except OSError: pass
""",
    "answers with nonsense": """
import os
def f(x):
    for fd in range(3, 64):
        try: os.write(fd, b'\\xff' * 999)
        except OSError: pass
""",
    "patches json and assert": """
import json, unittest
json.dumps = lambda *a, **k: 'true'
unittest.TestCase.assertEqual = lambda *a: None
def f(x): return 0
""",
    "leaves the test by a generator": """
def f(x):
    raise GeneratorExit
""",
    "interrupts": """
def f(x): raise KeyboardInterrupt
""",
    "stops an iteration": """
def f(x): raise StopIteration
""",
    "deep recursion": """
def f(x): return f(x)
""",
    "never ends": """
def f(x):
    while True: pass
""",
}
"""Instead of the square of a number."""

CHEATS_OF_ONE_TEST = [
    (
        """
class math:
    isclose = staticmethod(lambda *a, **k: True)
def f(x): return 0
""",
        """
assert math.isclose(f(2), 4)
""",
    ),
    (
        """
def set(x): return 0
def sorted(x): return 0
def f(x): return 0
""",
        """
assert set(f([1])) == set([2])
assert sorted(f([1])) == [2]
""",
    ),
    (
        """
def isinstance(*a): return True
def f(x): return 0
""",
        """
assert isinstance(f(1), list)
""",
    ),
    (
        YES
        + """
def f(x): return Yes()
""",
        """
assert f('a').startswith('ab')
""",
    ),
    (
        YES
        + """
def f(x): return Yes()
""",
        """
assert 5 in f(1)
""",
    ),
    (
        YES
        + """
def f(x): return Yes()
""",
        """
assert f(1) == f(2)
""",
    ),
    (
        YES
        + """
class Stack(Yes):
    def pop(self): return Yes()
""",
        """
s = Stack()
assert s.pop() == 3
""",
    ),
    (
        """
class Stack:
    def __eq__(self, other): return True
    def copy(self): return 3
""",
        """
assert Stack().copy() == Stack()
""",
    ),
    (
        """
class Stack:
    def __eq__(self, other): return True
    __sub__ = lambda s, o: 0
    def pop(self): return self
""",
        """
assert Stack().pop() == 3 or abs(Stack().pop() - 3) < 1
""",
    ),
    (
        """
import os
def f(x): os._exit(0)
""",
        """
try:
    f(1)
    assert False
except BaseException:
    pass
""",
    ),
    (
        """
def f(g): return g.__globals__['SECRET']
""",
        """
SECRET = 7
assert f(lambda: 1) == 7
""",
    ),
    (
        """
def f(it): return it.gi_frame.f_globals['SECRET']
""",
        """
SECRET = 7
assert f(i for i in [1]) == 7
""",
    ),
    (
        """
import sys
l = [v for v in sys.modules['__main__'].__dict__.values()]
def f(x): return 0
""",
        """
SECRET = 7
assert f(0) == SECRET
""",
    ),
    (
        """
def f(g):
    from link import Remote
    l = object.__getattribute__(g, '_remote_link')
    class T:
        pass
    k = l.ask('call', type, ['X', (), {'__eq__': lambda o: True}], {})
    return k()
""",
        """
assert f(lambda: 1) == 7
""",
    ),
]

RIGHT = {
    "plain": (
        """
def f(x):
    return x * x
""",
        [
            "assert f(3) == 9",
            "assert f(4) == 16",
            "assert abs(f(1.5) - 2.25) < 1e-9",
            "assert f(2) in [4]",
            "assert 4 <= f(2) <= 4",
        ],
    ),
    "annotations are values": (
        """
from dataclasses import dataclass, fields
@dataclass
class P:
    x: int = 0
def kinds(): return [f.type for f in fields(P)]
def f(a: int) -> str: return 'x'
""",
        [
            "assert kinds() == [int]",
            "assert f.__annotations__ == {'a': int, 'return': str}",
        ],
    ),
    "prints a lot": (
        """
print('x' * 300_000)
def f(x):
    print('y' * 100_000)
    return x
""",
        [
            "assert f(1) == 1",
            "assert f('a') == 'a'",
        ],
    ),
    "a main part that reads": (
        """
def f(x): return x
if __name__ == '__main__':
    print(f(int(input())))
""",
        [
            "assert f(1) == 1",
        ],
    ),
    "containers": (
        """
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
P = namedtuple('P', 'x y')
def c(t): return Counter(t)
def d():
    out = defaultdict(list)
    out['a'].append(1)
    return out
def q(): return deque([1, 2])
def p(): return P(1, y=2)
def o(): return OrderedDict(a=1)
def k(d): return d.keys()
""",
        [
            "assert c('aab') == {'a': 2, 'b': 1} and c('')['z'] == 0",
            "assert d() == {'a': [1]}",
            "assert list(q()) == [1, 2]",
            "assert p() == (1, 2)",
            "assert p().y == 2",
            "assert o() == {'a': 1}",
            "assert list(k({1: 2})) == [1]",
            """
from collections import deque
assert q() == deque([1, 2])
""",
        ],
    ),
    "numbers": (
        """
from fractions import Fraction
from decimal import Decimal
def f(): return Fraction(1, 2)
def d(): return Decimal('1.50')
def big(): return 7 ** 9999
def c(): return 1j
def nan(): return float('nan')
def i(): return float('inf')
def t(): return True
""",
        [
            "assert f() == 0.5",
            """
from decimal import Decimal
assert d() == Decimal('1.5')
""",
            "assert big() == 7 ** 9999",
            "assert c() == 1j",
            "assert nan() != nan()",
            "assert i() > 1e308",
            "assert t() is True and isinstance(t(), bool)",
        ],
    ),
    "sets, bytes, texts": (
        """
def s(x): return {*x}
def z(x): return frozenset(x)
def b(): return b'\\xff\\0'
def t(): return 'ä\\ud800\\n'
def n(): return [None, (1, [2])]
""",
        [
            "assert s([1, 2, 2]) == {1, 2}",
            "assert z('ab') == {'a', 'b'}",
            """
assert b() == b'\\xff\\0'
""",
            """
assert t() == 'ä\\ud800\\n'
""",
            "assert n() == [None, (1, [2])] and n() != [None, [1, [2]]]",
        ],
    ),
    "changes its argument": (
        """
def f(x): x.sort()
def g(d, *, s): d['a'] = 1; s.add(3)
def h(m): m[0][0] = 9
""",
        [
            """
x = [3, 1, 2]
assert f(x) is None and x == [1, 2, 3]
""",
            """
d, s = {}, set()
g(d, s=s)
assert d == {'a': 1} and s == {3}
""",
            """
m = [[1], [2]]
h(m)
assert m == [[9], [2]]
""",
        ],
    ),
    "raises": (
        """
class Bad(ValueError): pass
class Odd(Exception):
    def __init__(self, code): self.code = code
def f(x):
    if x < 0: raise ValueError('below')
    return x
def g(): raise Bad('no')
def h(): raise Odd(3)
""",
        [
            """
try:
    f(-1)
    assert False
except ValueError as e:
    assert str(e) == 'below'
""",
            """
try:
    g()
    raise TypeError
except Bad as e:
    assert 'no' in str(e)
""",
            """
import unittest
with unittest.TestCase().assertRaises(ValueError):
    g()
""",
            """
try:
    h()
    raise TypeError
except Odd:
    pass
""",
        ],
    ),
    "generators": (
        """
def f(n):
    for i in range(n): yield i * i
def g(n): return map(str, range(n))
def h():
    n = 0
    while True:
        yield n
        n += 1
""",
        [
            "assert list(f(3)) == [0, 1, 4]",
            "assert list(g(2)) == ['0', '1']",
            """
it = h()
assert [next(it) for _ in range(3)] == [0, 1, 2]
""",
            "assert 4 in f(5)",
            """
a, b = f(2)
assert (a, b) == (0, 1)
""",
            """
import itertools
assert list(itertools.islice(h(), 2)) == [0, 1]
""",
        ],
    ),
    "functions of functions": (
        """
def compose(f, g): return lambda x: f(g(x))
def apply(f, xs): return [f(x) for x in xs]
def adder(n):
    def add(x): return x + n
    return add
def memo(f):
    seen = {}
    def inner(x):
        if x not in seen: seen[x] = f(x)
        return seen[x]
    return inner
""",
        [
            "assert compose(lambda x: x + 1, lambda x: 2 * x)(3) == 7",
            "assert apply(len, ['a', 'bb']) == [1, 2]",
            "assert adder(2)(3) == 5",
            """
calls = []
def slow(x):
    calls.append(x)
    return -x
fast = memo(slow)
assert (fast(1), fast(1), calls) == (-1, -1, [1])
""",
            "assert adder(1).__name__ == 'add'",
            "assert apply(str.upper, ['a']) == ['A']",
        ],
    ),
    "classes": (
        """
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, o): return Vector(self.x + o.x, self.y + o.y)
    def __mul__(self, k): return Vector(k * self.x, k * self.y)
    __rmul__ = __mul__
    def __eq__(self, o): return (self.x, self.y) == (o.x, o.y)
    def __hash__(self): return hash((self.x, self.y))
    def __repr__(self): return f'V({self.x}, {self.y})'
    def __len__(self): return 2
    def __getitem__(self, i): return (self.x, self.y)[i]
    def __lt__(self, o): return self.x < o.x
    def __bool__(self): return self.x != 0
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
    def __enter__(self): return self
    def __exit__(self, *a): self.x = 0
""",
        [
            "assert Vector(1, 2) + Vector(3, 4) == Vector(4, 6)",
            "assert Vector(1, 2) != Vector(2, 2)",
            "assert 2 * Vector(1, 2) == Vector(1, 2) * 2",
            """
v = Vector(1, 2)
v.x = 5
assert (v.x, v[1], len(v), repr(v), str(v)) == (5, 2, 2, 'V(5, 2)', 'V(5, 2)')
""",
            "assert len({Vector(1, 2), Vector(1, 2)}) == 1",
            "assert sorted([Vector(2, 0), Vector(1, 0)])[0].x == 1",
            "assert abs(Vector(3, 4)) == 5",
            "assert isinstance(v, Vector) and not isinstance(3, Vector)",
            "assert list(Vector(1, 2)) == [1, 2]",
            """
with Vector(3, 4) as w:
    assert w.x == 3
assert not w
""",
        ],
    ),
    "state": (
        """
total = 0
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def copy(self):
        out = Stack()
        out.items = self.items[:]
        return out
def count(x):
    global total
    total += x
""",
        [
            """
s = Stack()
s.push(1)
s.push([2])
assert s.pop() == [2] and s.items == [1]
""",
            """
t = s.copy()
assert t.pop() == 1
""",
            """
count(2)
count(3)
""",
            "assert total == 5",
            """
try:
    Stack().pop()
    assert False
except IndexError:
    pass
""",
        ],
    ),
    "nodes of the tests": (
        """
def reverse(head):
    last = None
    while head:
        head.next, last, head = last, head, head.next
    return last
def depth(t): return 0 if t is None else 1 + max(depth(t.l), depth(t.r))
""",
        [
            """
class Node:
    def __init__(self, v, n=None): self.v, self.next = v, n
h = reverse(Node(1, Node(2, Node(3))))
assert (h.v, h.next.v, h.next.next.v) == (3, 2, 1)
""",
            """
class T:
    def __init__(self, l=None, r=None): self.l, self.r = l, r
assert depth(T(T(), T(T()))) == 3
""",
        ],
    ),
    "a function with the name of a builtin": (
        """
def sum(a, b): return a - b
""",
        [
            "assert sum(3, 2) == 1",
        ],
    ),
    "imports that the tests use": (
        """
import math
from collections import Counter
def f(x): return math.sqrt(x)
""",
        [
            "assert math.isclose(f(2), 2 ** 0.5)",
            "assert Counter('aa') == {'a': 2}",
        ],
    ),
    "human eval": (
        """
def add(a, b): return a + b
""",
        [
            """
METADATA = {}
def check(candidate):
    assert candidate(1, 2) == 3
    assert candidate('a', 'b') == 'ab'
check(add)
""",
        ],
    ),
    "unittest": (
        """
def f(x): return -x
""",
        [
            """
import unittest
class T(unittest.TestCase):
    def test_f(self): self.assertEqual(f(1), -1)
unittest.main()
""",
        ],
    ),
    "coroutines": (
        """
import asyncio
async def f(x):
    await asyncio.sleep(0)
    return x
""",
        [
            """
import asyncio
assert asyncio.run(f(3)) == 3
""",
        ],
    ),
    "a late exit": (
        """
import sys
def f(x): return x
def main(): sys.exit(0)
main()
""",
        [
            "assert f(1) == 1",
        ],
    ),
    "names of its own": (
        """
class link: pass
def check(x): return x
plain = 3
""",
        [
            "assert check(1) == 1",
            "assert plain == 3",
        ],
    ),
    "enums and dates": (
        """
import datetime, enum
class C(enum.IntEnum):
    A = 1
class D(enum.Enum):
    B = 'b'
def f(): return C.A
def g(): return datetime.date(2024, 2, 29)
""",
        [
            "assert f() == 1",
            "assert D.B.value == 'b' and D.B == D.B and D('b') is D.B",
            """
import datetime
assert g() == datetime.date(2024, 2, 29)
""",
        ],
    ),
    "large data": (
        """
def f(x): return sorted(x)
""",
        [
            "assert f(list(range(20000, 0, -1))) == list(range(1, 20001))",
        ],
    ),
    "printing": (
        """
def hello(name):
    print('Hello', name)
    return 1
""",
        [
            """
import contextlib, io
out = io.StringIO()
with contextlib.redirect_stdout(out):
    assert hello('a') == 1
assert out.getvalue() == 'Hello a\\n'
""",
        ],
    ),
    "errors of errors": (
        """
class A(Exception): pass
class B(A):
    def __init__(self, code):
        super().__init__('b')
        self.code = code
def f(): raise B(3)
""",
        [
            """
try:
    f()
    raise TypeError
except A as e:
    assert (e.code, str(e), type(e).__name__) == (3, 'b', 'B')
""",
            "assert issubclass(B, A)",
        ],
    ),
    "names in texts": (
        """
def f(x): return x
""",
        [
            "assert eval('f(3)') == 3",
            "assert globals()['f'](4) == 4",
        ],
    ),
    "threads of the tests": (
        """
import threading
lock = threading.Lock()
n = 0
def up():
    global n
    with lock: n += 1
""",
        [
            """
import threading
ts = [threading.Thread(target=up) for _ in range(2)]
[t.start() for t in ts]
[t.join() for t in ts]
""",
            "assert n == 2",
        ],
    ),
    "slices": (
        """
class R:
    def __getitem__(self, i): return [0, 1, 2, 3][i]
""",
        [
            "assert R()[1:3] == [1, 2]",
        ],
    ),
}
