"""`runnel`: train, pipeline, eval, chat, league, resume, data, export, trace, report, card, list, doctor, check-env,
check-chat, bench, plan.

And studies: tune, simulate. And a run as a job: submit, ps, logs, stop, scale, set, add-tasks, attach.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from runnel.core.disk import refused
from runnel.core.errors import ConfigError, RunnelError
from runnel.core.user_code import is_users, told

FORMAT = warnings.formatwarning
ENOUGH = 128 + 13
"""Exit code if the reader of our output has closed the pipe: the code that a shell gives for SIGPIPE."""
USAGE = """usage: runnel COMMAND ...

Reinforcement learning on one dataflow of workers and streams.

  train RECIPE [--field value ...]   train; RECIPE is a name (see `runnel list`) or the path of your own file
  pipeline NAME [--field value ...]  several runs in a row, each on the model of the one before; goes on where it ended
  eval RUN [RUN ...] [--episodes N]  measure the policies of runs on fresh episodes; of several agents, a match between runs
  chat POLICY [--play N]             talk to the policy of a run or of a model; or watch it play its environment
  league RUN [--play N]              who beats whom in a run of self-play: members, ratings, pay-offs in each seat
  resume RUN [--field value ...]     go on from the newest good checkpoint; --total-steps N extends the run
  record RUN [--episodes N]          record episodes of a run's policy as video
  data record RUN FOLDER             every step of a policy's episodes as a data set; data inspect FOLDER looks at one
  export RUN FOLDER [--format F]     the policy of a run for other programs: torch.export, ONNX, a Hugging Face folder
  report RUN [RUN ...]               write report.html: one run, or several compared
  report A B ... --over seeds        which group of runs is better, by how much, how sure; --markdown, --paper FOLDER
  card RUN                           write a model card: task, results, settings, limits, how to load it
  board [FOLDER]                     all runs in the browser, live: curves, streams, episodes, conversations
  list                               recipes, algorithms, environments, tasks and engines, a line each
  doctor                             what this machine has, and the command that installs what it lacks
  check-env ENV                      what is wrong with an environment, in words
  check-chat ENV                     what is wrong with a conversation environment, in words
  bench [--recipe NAME] [--profile]  how fast a recipe runs here, and where its time goes
  plan RECIPE [--field value ...]    measure its stages here, and find the fastest placement on a cluster you describe
  submit train RECIPE ...            run on a Ray cluster as a job
  ps [FOLDER]                        runs: what they do, how far they are
  logs RUN [-f]                      what the processes of a run have printed
  attach RUN                         the live view of a run that goes on elsewhere
  scale RUN --actors N               change the number of actors or policy workers while it goes on
  set RUN NAME=VALUE ...             another learning rate or coefficient, while it goes on
  add-tasks RUN FILE                 more prompts, while it goes on
  stop RUN                           end it at its next version, with a checkpoint
  trace RUN [--out FILE]             what every worker did when, for ui.perfetto.dev; the run was started with --trace
  tune RECIPE [--search ...]         search for good settings: Optuna, or population based training on live runs
  simulate [--actors N ...]          a cluster of thousands of cores by simulation, on the real staleness policies

`runnel COMMAND --help` says more; `runnel train RECIPE --help` lists every field of that recipe.

examples:
  runnel train ppo --env CartPole-v1 --total-steps 100000
  runnel train ppo --env my_env.py:MyEnv --launcher local --num-actors 2 --staleness.mode window
  runnel train grpo --task reverse --dry-run
"""

COMMANDS = {
    "train": "train:train",
    "resume": "train:resume",
    "pipeline": "train:pipeline",
    "eval": "evaluating:evaluate",
    "chat": "chat:chat",
    "league": "league:league",
    "record": "commands:record",
    "data": "data:data",
    "export": "commands:export",
    "trace": "reading:trace",
    "report": "reading:report",
    "card": "reading:card",
    "board": "reading:board",
    "list": "listing:list_all",
    "doctor": "doctor:doctor",
    "check-env": "commands:check_environment",
    "check-chat": "commands:check_chat_environment",
    "bench": "bench:bench",
    "plan": "plan:plan",
    "simulate": "simulate:simulate",
    "tune": "tune:tune",
    "submit": "jobs:submit",
    "ps": "jobs:ps",
    "logs": "jobs:logs",
    "attach": "jobs:attach",
    "scale": "jobs:scale",
    "set": "jobs:set_live",
    "add-tasks": "jobs:add_new_tasks",
    "stop": "jobs:stop",
}
"""Each command: the module of `runnel.cli` and the function in it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `runnel` command; returns the exit code."""
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # a broken pipe must fail here, where it is caught, and not when the interpreter ends
    except BrokenPipeError:  # the reader has closed the pipe: `runnel list | head`
        # the interpreter flushes stdout once more at its end: that must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ENOUGH


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if args[0] in ("-V", "--version"):
        import runnel

        print(f"runnel {runnel.__version__}")
        return 0
    warnings.formatwarning = _told
    try:
        return _command(args[0])(args[1:])
    except ConfigError as error:
        print(f"runnel: error: {error}", file=sys.stderr)
        return 2
    except RunnelError as error:
        return _failed(error, f"{type(error).__name__}: {error}")
    except (Exception, SystemExit) as error:
        if not isinstance(error, BrokenPipeError) and (full := refused(error, Path.cwd())) is not None:
            return _failed(full, f"{type(full).__name__}: {full}")
        if not is_users(error):  # a mistake in runnel: show the traceback, which a bug report needs
            raise
        return _failed(error, f"your code raised {told(error)}")
    except KeyboardInterrupt:
        print("runnel: interrupted", file=sys.stderr)
        return 130


def _failed(error: BaseException, text: str) -> int:
    """Print an error with the notes that were added to it; returns the exit code."""
    print("\n".join([f"runnel: {text}", *getattr(error, "__notes__", [])]), file=sys.stderr)
    return 1


def _told(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """Format a warning for the command line: its text, without the line of code that raised it."""
    return f"runnel: warning: {message}\n" if category is UserWarning else FORMAT(message, category, filename, lineno, line)


def _command(name: str) -> Callable[[list[str]], int]:
    """The function of a command. Only the module of that command is imported: most of them need torch."""
    if name not in COMMANDS:
        raise ConfigError("command", name, f"unknown; use one of {', '.join(COMMANDS)}")
    module, _, function = COMMANDS[name].partition(":")
    found: Callable[[list[str]], int] = getattr(importlib.import_module(f"runnel.cli.{module}"), function)
    return found
