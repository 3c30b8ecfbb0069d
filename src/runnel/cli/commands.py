"""`runnel record`, `runnel export`, `runnel check-env` and `runnel check-chat`."""

from __future__ import annotations

from pathlib import Path

from runnel.cli.arguments import add_best, add_trust, add_wrappers, json_object, make_parser
from runnel.run import api
from runnel.run.export import EXPORTS
from runnel.testing.envs import check_env

EXPORT = (
    "Write the policy of a run for other programs. A language model becomes a folder that plain transformers loads "
    "(safetensors, config, tokenizer). Any other policy becomes one graph from observation to action: policy.pt2 "
    "(torch.export) or policy.onnx, with policy.json, which says how to call it."
)


def record(args: list[str]) -> int:
    """Record episodes of a run's policy as video."""
    parser = make_parser("record", "Record episodes of a run's newest policy as video.")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--episodes", type=int, default=1, help="episodes to record (1)")
    parser.add_argument("--seed", type=int, default=0, help="another number plays other episodes (0)")
    parser.add_argument("--max-steps", type=int, default=2_000, help="cut an episode after so many steps (2000)")
    parser.add_argument("--fps", type=float, default=0.0, help="frames a second (what the environment says)")
    parser.add_argument("--out", type=Path, default=None, help="folder for the videos (default: episodes/ in the run's folder)")
    add_best(parser)
    add_trust(parser)
    parsed = parser.parse_args(args)
    for path in api.record(
        parsed.run,
        episodes=parsed.episodes,
        out=parsed.out,
        seed=parsed.seed,
        max_steps=parsed.max_steps,
        fps=parsed.fps,
        best=parsed.best,
        trust=parsed.trust,
    ):
        print(path)
    return 0


def export(args: list[str]) -> int:
    """Write the policy of a run for other programs."""
    parser = make_parser("export", EXPORT)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("folder", help="the folder to write")
    default = "default: hf for a language model, torch for any other policy"
    parser.add_argument("--format", choices=EXPORTS, default="", help=default)
    add_best(parser)
    add_trust(parser)
    parsed = parser.parse_args(args)
    print(api.export(parsed.run, parsed.folder, format=parsed.format, best=parsed.best, trust=parsed.trust))
    return 0


def check_environment(args: list[str]) -> int:
    """Say what is wrong with an environment."""
    parser = make_parser("check-env", "Say in words what is wrong with an environment.")
    parser.add_argument("env", help="an id, pettingzoo:FAMILY.NAME, module:Class or path/to/file.py:factory")
    parser.add_argument("--env-kwargs", type=json_object, default={}, help="arguments of its constructor, as JSON")
    add_wrappers(parser, "module:Class or file.py:name, innermost first")
    parsed = parser.parse_args(args)
    found = check_env(parsed.env, kwargs=parsed.env_kwargs, wrappers=parsed.env_wrapper)
    print(found)
    return 1 if found else 0


def check_chat_environment(args: list[str]) -> int:
    """Say what is wrong with a conversation environment."""
    from runnel.testing.chat import check_chat

    parser = make_parser("check-chat", "Say in words what is wrong with a conversation environment.")
    parser.add_argument("chat", help="path/to/file.py:make_env, module:Class or the name of a built-in world")
    parser.add_argument("--settings", type=json_object, default={}, help="arguments of the function or the world, as JSON")
    parser.add_argument("--episodes", type=int, default=4, help="conversations with random messages (4)")
    parser.add_argument("--max-turns", type=int, default=32, help="most messages of a conversation (32)")
    parser.add_argument("--timeout-s", type=float, default=30.0, help="a call that takes longer is an error (30)")
    parsed = parser.parse_args(args)
    found = check_chat(
        parsed.chat,
        settings=parsed.settings,
        episodes=parsed.episodes,
        max_turns=parsed.max_turns,
        timeout_s=parsed.timeout_s,
    )
    print(found)
    return 1 if found else 0
