"""What ordinary programs do, a function for each: none of it may be refused in the sandbox."""
# ruff: noqa: E401, I001, F401, PT018, SIM105, SIM115  (as programs are written, not as tests are)


def files():
    import glob, os, pathlib, shutil, tempfile

    os.makedirs("a/b")
    pathlib.Path("a/b/x.txt").write_text("one\ntwo\n")
    with open("a/b/x.txt", "r+") as file:
        file.seek(0, 2)
        file.write("three")
        file.truncate(5)
    os.rename("a/b/x.txt", "a/b/y.txt")
    os.link("a/b/y.txt", "a/b/z.txt")
    os.symlink("y.txt", "a/b/link")
    assert os.readlink("a/b/link") == "y.txt"
    assert open("a/b/link").read() == "one\nt"
    shutil.copyfile("a/b/y.txt", "copy")
    assert os.stat("copy").st_size == 5
    assert os.access("copy", os.R_OK)
    assert len(glob.glob("a/**", recursive=True)) == 5
    assert sum(len(f) for _, _, f in os.walk("a")) == 3
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"x")
        os.fsync(file.fileno())
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
    shutil.rmtree("a")
    os.unlink("copy")
    assert os.path.realpath(".") and os.statvfs(".").f_bsize and shutil.disk_usage(".")
    os.umask(0o022)


def text():
    import argparse, collections, configparser, csv, difflib, html, io, json, re, string, textwrap, tomllib, unicodedata
    import xml.etree.ElementTree as tree

    assert json.loads(json.dumps({"a": [1, 2.5, None]}))["a"][1] == 2.5
    assert re.sub(r"(\w+) (\w+)", r"\2 \1", "a b") == "b a"
    assert list(csv.reader(io.StringIO("a,b\n"))) == [["a", "b"]]
    assert tree.fromstring("<a><b/></a>")[0].tag == "b"
    assert collections.Counter("aab")["a"] == 2


def numbers():
    import cmath, decimal, fractions, hashlib, heapq, itertools, math, operator, random, secrets, statistics, uuid

    assert decimal.Decimal(1) / 3 > fractions.Fraction(33, 100)
    random.seed(0)
    assert 0 <= random.random() < 1 and secrets.token_bytes(4) and uuid.uuid4()
    assert hashlib.sha256(b"").hexdigest()[:4] == "e3b0"
    assert math.comb(5, 2) == 10 and statistics.mean([1, 3]) == 2


def clocks():
    import calendar, datetime, time, zoneinfo

    time.sleep(0.001)
    assert time.time() and time.monotonic() and time.process_time() >= 0 and time.thread_time() >= 0
    assert time.get_clock_info("monotonic").resolution
    assert datetime.datetime.now().astimezone().tzinfo is not None
    assert time.localtime().tm_year > 2000 and time.strftime("%Y")


def threads():
    import concurrent.futures, queue, threading

    box = queue.Queue()
    workers = [threading.Thread(target=box.put, args=(i,)) for i in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(box.get() for _ in range(5)) == [0, 1, 2, 3, 4]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(abs, [-1, -2])) == [1, 2]
    timer = threading.Timer(0.001, lambda: None)
    timer.start()
    timer.join()
    assert not threading.Lock().acquire() or threading.Event().wait(0.001) is False


def event_loops():
    import asyncio

    async def one(i):
        await asyncio.sleep(0.001)
        return await asyncio.to_thread(abs, -i)

    async def all_of_them():
        box = asyncio.Queue()
        await box.put(1)
        return await asyncio.wait_for(asyncio.gather(one(1), one(2), box.get()), 5)

    assert asyncio.run(all_of_them()) == [1, 2, 1]


def signals():
    import signal, threading

    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    signal.sigtimedwait([signal.SIGUSR1], 0.02)
    signal.alarm(0)
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(2))
    signal.raise_signal(signal.SIGUSR1)
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
    assert seen.count(2) == 2 and 1 in seen


def pipes():
    import os, select, selectors, socket

    read, write = os.pipe()
    os.set_blocking(read, False)
    os.write(write, b"x")
    assert select.select([read], [], [], 1)[0] == [read]
    with selectors.DefaultSelector() as selector:
        selector.register(read, selectors.EVENT_READ)
        assert selector.select(1)
    poll = select.poll()
    poll.register(read)
    assert poll.poll(1)
    assert not os.isatty(read) and os.dup(read) and os.dup2(read, 50) == 50
    left, right = socket.socketpair()
    left.sendall(b"hello")
    assert right.recv(5) == b"hello" and left.getsockname() == ""
    left.settimeout(0.01)
    left.shutdown(socket.SHUT_RDWR)
    left.close()


def packed():
    import bz2, gzip, io, lzma, mmap, pickle, sqlite3, tarfile, zipfile, zlib

    for module in (bz2, gzip, lzma, zlib):
        assert module.decompress(module.compress(b"x" * 100)) == b"x" * 100
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("b", "c")
    zipfile.ZipFile("a.zip").extractall("out")
    with tarfile.open(fileobj=io.BytesIO(), mode="w") as archive:
        archive.add("out")
    with sqlite3.connect("a.db") as base:
        base.execute("create table t (x)")
        base.executemany("insert into t values (?)", [(1,), (2,)])
    with sqlite3.connect("a.db") as base:
        base.execute("pragma journal_mode=wal")
        assert base.execute("select sum(x) from t").fetchone() == (3,)
    assert pickle.loads(pickle.dumps({1})) == {1}
    with open("m", "wb+") as file:
        file.write(bytes(4096))
        file.flush()
        with mmap.mmap(file.fileno(), 4096) as view:
            view[0:1] = b"x"
            view.flush()


def itself():
    import ctypes, dataclasses, functools, gc, getpass, inspect, logging, os, resource, sys, typing, unittest, weakref

    assert os.getpid() > 0 and os.getppid() >= 0 and os.getuid() == os.geteuid() and os.getgroups() is not None
    assert len(os.sched_getaffinity(0)) and os.cpu_count() and os.uname().sysname == "Linux"
    assert os.getpgid(0) >= 0 and os.getsid(0) >= 0 and os.times().user >= 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss and resource.getrlimit(resource.RLIMIT_AS)
    assert resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE) and sys.getswitchinterval() and gc.collect() >= 0
    assert ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 3)() == 3
    assert os.urandom(4) and os.getrandom(4) and open("/dev/urandom", "rb").read(1)
    assert (
        sys.getsizeof([]) and os.sysconf("SC_PAGE_SIZE") and os.sysconf("SC_NPROCESSORS_ONLN") and os.sysconf("SC_PHYS_PAGES")
    )
    with open(os.devnull, "w") as nothing:
        nothing.write("x")
    try:
        os.wait()
    except ChildProcessError:
        pass
    sys.setrecursionlimit(3000)
    logging.getLogger().warning("on stderr")
    assert unittest.TextTestRunner(stream=open(os.devnull, "w")).run(unittest.TestSuite()).wasSuccessful()


def copies():
    import os, shelve, shutil

    with shelve.open("shelf") as shelf:
        shelf["a"] = 1
    open("p", "w").write("x")
    shutil.copy2("p", "q")
    os.chmod("q", 0o600)
    os.utime("q", (1, 1))
    assert os.stat("q").st_mtime == 1 and shutil.copytree(".", "tree")


ALWAYS = (files, text, numbers, clocks, threads, event_loops, signals, pipes, packed, itself)
"""And `copies` where the sandbox has a root of its own."""
