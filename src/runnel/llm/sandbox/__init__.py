"""Running a model's code where it can do no harm: `run.py` starts and watches, `child.py` is the program that is started,
`confine.py` asks the kernel."""
