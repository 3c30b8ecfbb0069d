"""The house rules that a machine can check: who imports whom, what nobody may use, how long a file may grow."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "runnel"
FILES = sorted(SRC.rglob("*.py"))

BELOW_GRAPHS = {"core", "ops", "losses", "nets", "kernels", "envs", "data", "agents", "llm", "flow", "eval", "track", "games"}
BELOW_RUN = BELOW_GRAPHS | {"graphs", "report", "testing"}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "ops": {"core"},
    "losses": {"core", "ops"},
    "nets": {"core", "ops"},
    "data": {"core", "ops"},
    "flow": {"core"},
    "agents": {"core", "ops", "losses", "nets", "data"},
    "kernels": {"core", "ops", "losses", "nets", "agents"},
    "envs": {"core", "ops", "kernels"},
    "llm": {"core", "ops", "losses", "nets", "data", "kernels"},
    "eval": {"core", "envs"},
    "games": {"core", "ops"},
    "track": {"core", "eval"},
    "report": {"core", "eval", "track"},
    "board": {"core", "eval", "track", "report"},
    "graphs": BELOW_GRAPHS,
    "testing": BELOW_GRAPHS,
    "run": BELOW_RUN | {"plan"},
    "runnel": BELOW_RUN | {"run"},
    "recipes": {"runnel"},
    "tune": BELOW_RUN | {"run", "recipes", "runnel"},
    "plan": {"core", "flow", "track", "report", "graphs"},
    "cli": BELOW_RUN | {"run", "recipes", "tune", "plan", "board", "runnel"},
}
"""Besides itself. `runnel` is the package's own __init__: the public names."""
NAMES_NOBODY_USES = {"utils", "util", "common", "helpers", "misc", "legacy", "experimental", "v2"}
UNSAFE = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
MAX_LINES = 600
HEAVY = ("gymnasium", "transformers", "wandb", "tensorboard", "rich", "tyro", "safetensors", "ray")


def name_of(path: Path) -> str:
    return str(path.relative_to(SRC))


def package_of(path: Path) -> str:
    parts = path.relative_to(SRC).parts
    if parts == ("__main__.py",):
        return "cli"
    return parts[0] if len(parts) > 1 else "runnel"


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in a file, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno} imports relatively; write the whole name"
            assert node.module is not None
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def target_package(dotted: str) -> str | None:
    """The package of ours that an import reaches; `runnel` for the public names; None for what is not ours."""
    parts = dotted.split(".")
    if parts[0] != "runnel":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "runnel"


@functools.cache
def edges() -> list[tuple[str, str, str]]:
    """(package, package, where) of every import between packages of ours."""
    found = []
    for path in FILES:
        for line, dotted in imports_of(path):
            target, own = target_package(dotted), package_of(path)
            if target is not None and target != own:
                found.append((own, target, f"{name_of(path)}:{line}"))
    return found


def test_every_package_has_a_rule() -> None:
    assert {package_of(p) for p in FILES} <= set(MAY_IMPORT)


def test_no_package_imports_what_it_may_not_know() -> None:
    wrong = [f"{where}: {own} imports {target}" for own, target, where in edges() if target not in MAY_IMPORT[own]]
    assert not wrong, "\n".join(wrong)


def test_packages_form_no_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for own, target, _ in edges():
        graph.setdefault(own, set()).add(target)
    finished: set[str] = set()

    def visit(package: str, path: tuple[str, ...]) -> None:
        assert package not in path, " -> ".join((*path[path.index(package) :], package))
        if package not in finished:
            for target in sorted(graph.get(package, ())):
                visit(target, (*path, package))
            finished.add(package)

    for package in sorted(graph):
        visit(package, ())


def test_modules_form_no_cycle() -> None:
    """Between files too, counting only what is imported when a module is loaded."""
    modules = {".".join(("runnel", *p.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__"): p for p in FILES}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("runnel"):
                found = {f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in modules else node.module for a in node.names}
                graph.setdefault(name, set()).update(found)
    finished: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in finished:
            for target in sorted(graph.get(module, ())):
                visit(target, (*path, module))
            finished.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_flow_meets_agents_llm_and_envs_only_in_graphs_and_run() -> None:
    sides = {"agents", "llm", "envs", "eval", "nets", "data"}
    assert not [w for own, target, w in edges() if (own == "flow" and target in sides) or (own in sides and target == "flow")]


def test_agents_and_nets_are_plain_code() -> None:
    """What accelerates them is handed to them, so that the update that is read is the update that runs."""
    assert not [where for own, target, where in edges() if own in {"agents", "nets"} and target == "kernels"]


def test_every_folder_is_a_package() -> None:
    """A wheel leaves out folders without `__init__.py`."""
    assert not {name_of(path.parent) for path in FILES} - {name_of(path.parent) for path in FILES if path.name == "__init__.py"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file(path: Path) -> None:
    parts = {part.removesuffix(".py") for part in path.relative_to(SRC).parts}
    assert not parts & NAMES_NOBODY_USES, f"{name_of(path)}: name it after what it holds"
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES, f"{name_of(path)} has over {MAX_LINES} lines; split it"
    assert ast.get_docstring(ast.parse(text)), f"{name_of(path)} does not say why it exists"
    for line, dotted in imports_of(path):
        assert dotted.split(".")[0] not in UNSAFE, f"{name_of(path)}:{line} imports {dotted}: data only, never pickle"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("torch.load", "torch.save"), f"{name_of(path)}:{node.lineno} uses {called}, which pickles"


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert not [name_of(p) for p in SRC.rglob("*") if p.is_dir() and p.name in NAMES_NOBODY_USES]


@pytest.mark.parametrize("path", [p for p in FILES if package_of(p) == "flow"], ids=name_of)
def test_flow_reads_time_from_the_injected_clock(path: Path) -> None:
    for line, dotted in imports_of(path):
        if dotted == "datetime.timedelta":  # a span of time, which torch wants for its limits, reads no clock
            continue
        assert dotted.split(".")[0] not in ("time", "datetime"), f"{name_of(path)}:{line}: take a core.clock.Clock instead"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "time", f"{name_of(path)}:{node.lineno}: take a core.clock.Clock instead"


@pytest.mark.parametrize("path", [p for p in FILES if package_of(p) == "recipes"], ids=name_of)
def test_recipes_use_public_names_only(path: Path) -> None:
    import runnel as rl

    tree = ast.parse(path.read_text())
    for line, dotted in imports_of(path):
        if dotted.split(".")[0] == "runnel":
            assert dotted == "runnel" or dotted.startswith("runnel.recipes"), f"{name_of(path)}:{line} imports {dotted}"
    for used in names_below(tree, "rl"):
        home, name = (importlib.import_module(f"runnel.{used[0]}"), used[1]) if is_package(used[0]) else (rl, used[0])
        assert name in home.__all__, f"{name_of(path)} uses rl.{'.'.join(used)}, which is no public name"


def names_below(tree: ast.AST, root: str) -> Iterator[list[str]]:
    """`["agents", "PPOConfig", "gamma"]` for `rl.agents.PPOConfig.gamma`: every whole chain of attributes of `root`."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            chain = ast.unparse(node).split(".")
            if chain[0] == root:
                yield [part.partition("(")[0] for part in chain[1:]]


def is_package(name: str) -> bool:
    return (SRC / name / "__init__.py").exists()


def test_no_two_classes_have_one_name() -> None:
    """A reader who searches for a class finds one. Each recipe has a `Config`."""
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not (node.name == "Config" and package_of(path) == "recipes"):
                homes.setdefault(node.name, []).append(f"{name_of(path)}:{node.lineno}")
    assert not {name: found for name, found in homes.items() if len(found) > 1}


BARE = """
import importlib, sys
from pathlib import Path

HEAVY = set({heavy!r})

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked)", name=name)
        return None

sys.meta_path.insert(0, Blocker())
import runnel
from runnel.core.config import override, to_data

built = []
for path in sorted(Path({recipes!r}).glob("*.py")):
    if path.stem == "__init__":
        continue
    module = importlib.import_module(f"runnel.recipes.{{path.stem}}")
    if hasattr(module, "Config"):
        config = module.Config()
        config.check()
        assert override(module.Config(), to_data(config)) == config, path.stem
        built.append(path.stem)
assert not HEAVY & {{name.split(".")[0] for name in sys.modules}}
print(" ".join(built))
"""


def test_import_and_every_config_need_numpy_and_torch_alone() -> None:
    code = BARE.format(heavy=HEAVY, recipes=str(SRC / "recipes"))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert {"ppo", "dqn", "cartpole"} <= set(result.stdout.split())
