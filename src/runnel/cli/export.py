"""`runnel export`: a run's policy for other programs."""

from __future__ import annotations

import argparse

from runnel.cli.trusting import add_trust
from runnel.run import api
from runnel.run.export import EXPORTS


def export(args: list[str]) -> int:
    """Write the policy of a run for other programs."""
    parser = argparse.ArgumentParser(
        prog="runnel export",
        description="Write the policy of a run for other programs. A language model becomes a folder that plain transformers "
        "loads (safetensors, config, tokenizer). Any other policy becomes one graph from observation to action: policy.pt2 "
        "(torch.export) or policy.onnx, with policy.json, which says how to call it.",
    )
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("folder", help="the folder to write")
    parser.add_argument(
        "--format", choices=EXPORTS, default="", help="default: hf for a language model, torch for any other policy"
    )
    parser.add_argument("--best", action="store_true", help="the version with the best evaluation, and not the newest")
    add_trust(parser)
    parsed = parser.parse_args(args)
    print(api.export(parsed.run, parsed.folder, format=parsed.format, best=parsed.best, trust=parsed.trust))
    return 0
