"""Runs a model's code where it can do no harm: `run.py` starts and watches it, `child.py` is the program that is started,
`mounts.py` and `confine.py` confine it by the kernel, `calls.py` has the allowed system calls, `folder.py` manages folders.
Interpreters with memory: `session.py` has sessions and their pool, `interpreter.py` the exchange with one of them, `zygote.py`
the program that they are forked from, `loop.py` what runs in them, `tool.py` the tool `python` of conversations.
"""
