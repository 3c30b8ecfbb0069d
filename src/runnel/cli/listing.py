"""`runnel list`: everything that has a name. It reads names and first lines only, so it starts without torch."""

from __future__ import annotations

from runnel.cli.arguments import make_parser
from runnel.envs.known import KNOWN
from runnel.run.names import ALGORITHMS, ENGINES, TOOLS, list_pipelines, list_recipes, list_tasks, list_worlds


def list_all(args: list[str]) -> int:
    """Everything that has a name, with a line each."""
    make_parser("list", "Recipes, algorithms, environments, tasks, conversations, tools, engines.").parse_args(args)
    sections = {
        "recipes (runnel train NAME)": list_recipes(),
        "pipelines (runnel pipeline NAME)": list_pipelines(),
        "algorithms": ALGORITHMS,
        "environments (--env)": KNOWN,
        "tasks (--task)": list_tasks(),
        "conversations (--chat)": list_worlds(),
        "tools (--tools)": TOOLS,
        "engines": ENGINES,
    }
    for title, entries in sections.items():
        print(title)
        width = max(len(name) for name in entries)
        for name, line in entries.items():
            print(f"  {name:{width}}  {line}")
    return 0
