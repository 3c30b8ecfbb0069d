"""Running a model's code where it can do no harm: `run.py` starts and watches, `child.py` is the program that is started,
`mounts.py` and `confine.py` ask the kernel, `calls.py` says what is allowed, `folder.py` makes folders and sweeps them.
"""
