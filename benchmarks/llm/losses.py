"""Our losses of preferences beside TRL's: values and gradients on the same rows, by the same tiny models of random weights.

python -m benchmarks.llm.losses --out benchmarks/results/llm/losses.json

TRL runs in an environment of its own (`peer_trl_losses.py`): its trainers make a batch of ragged rows, and our token learner
takes the tokens of that batch. Where both mean different things, each is held against its own equation, written out below.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import runnel as rl
from benchmarks import machine, venvs
from benchmarks.llm import work
from benchmarks.llm.rows import TRL
from runnel.core.records import Header, Segment, trim
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.sampling.groups import pair_stream, rated_stream, write_row

Rows = Sequence[Sequence[Sequence[int]]]
Grads = dict[str, Tensor]
SETTINGS = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
OURS: dict[str, Callable[[], Any]] = {
    "dpo": lambda: rl.llm.DPO(rl.llm.DPOConfig(beta=0.3)),
    "hinge": lambda: rl.llm.DPO(rl.llm.DPOConfig(beta=0.3, loss="hinge")),
    "ipo": lambda: rl.llm.DPO(rl.llm.DPOConfig(beta=0.3, loss="ipo")),
    "simpo": lambda: rl.llm.SimPO(rl.llm.SimPOConfig(beta=2.0, gap=1.0)),
    "cpo": lambda: rl.llm.CPO(rl.llm.CPOConfig(beta=0.3, chosen_coef=0.7)),
    "orpo": lambda: rl.llm.ORPO(rl.llm.ORPOConfig(odds_coef=0.4)),
    "kto": lambda: rl.llm.KTO(rl.llm.KTOConfig(beta=0.3, good_weight=1.3, bad_weight=0.8)),
}


def make_models(folder: Path) -> tuple[str, str]:
    """Policy and reference: two small models of random weights, whose answers differ in probability, and a tokenizer."""
    tokenizer, paths = work.build_tokenizer(), []
    for seed, name in enumerate(("policy", "reference")):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=4, initializer_range=0.2, **SETTINGS)
        )
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        paths.append(str(folder / name))
    return paths[0], paths[1]


def make_data() -> dict[str, Any]:
    """Ragged texts."""
    rng = np.random.default_rng(0)

    def text(low: int, high: int) -> str:
        return "".join(rng.choice(list("abcdefgh"), size=int(rng.integers(low, high))))

    pairs = [{"prompt": text(2, 9), "chosen": text(1, 12), "rejected": text(1, 12)} for _ in range(6)]
    rated = [{"prompt": text(2, 9), "completion": text(1, 12), "label": bool(i % 3)} for i in range(8)]
    return {"pairs": pairs, "rated": rated}


def segments(rows: Rows, labels: Sequence[bool]) -> dict[str, list[Segment]]:
    """TRL's rows as a segment of ours. Its first half is chosen (or judged), the second rejected (or mismatched)."""
    half = len(rows) // 2
    order = [rows[i + side * half] for i in range(half) for side in (0, 1)]
    longest = max(len(tokens) for tokens, _ in rows)
    name = "rated" if labels else "pairs"
    rated = rated_stream(num_rows=half, max_length=longest, mismatched=True)
    spec = rated if labels else pair_stream(num_pairs=half, max_length=longest)
    arrays, start = spec.allocate(), 0
    for row, (tokens, marks) in enumerate(order):
        first = marks.index(1)
        start += write_row(arrays, row, start, torch.tensor(tokens[:first]), torch.tensor(tokens[first:]))
        if labels:
            arrays["rating"][row], arrays["mismatched"][row] = float(labels[row // 2]), row % 2 == 1
    used = {"N": start}
    return {name: [Segment(0, spec, Header(used=used), trim(spec, arrays, used))]}


def ours(name: str, policy: str, reference: str, given: dict[str, list[Segment]]) -> tuple[float, Grads]:
    """Loss and gradient by the token learner."""
    config = TokenLearnerConfig(reference=(reference,), precision="float32", max_grad_norm=1e9, micro_batch_tokens=40)
    model = build_model(ModelConfig(path=policy), 0, seed=0)
    (reader,) = given
    learner = TokenLearner(config, model, algorithms={reader: OURS[name]()})
    metrics = learner.update(learner.prepare(given, progress=0.0)).metrics
    coefs = {n: c.coef for n, c in learner.algorithms[reader].components.items()}
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return sum(coef * metrics[f"loss/{n}"] for n, coef in coefs.items()), grads


def point_of(policy: str, reference: str, given: dict[str, list[Segment]]) -> float:
    """KTO's z0: 0 where the policy lost on mismatched rows."""
    config = TokenLearnerConfig(reference=(reference,), precision="float32")
    model = build_model(ModelConfig(path=policy), 0, seed=0)
    learner = TokenLearner(config, model, algorithms={"rated": OURS["kto"]()})
    return float(learner.prepare(given, progress=0.0)["stats/preference/point"])


def by_equation(name: str, form: str, policy: str, reference: str, rows: Rows) -> tuple[float, Grads]:
    """Loss and gradient of IPO and ORPO by transformers alone, row by row: the form of the `paper`, or that of `trl`.

    IPO: `(h - 1/(2 beta))^2`, where h sums log-ratios over the tokens of an answer (paper, eq. 17), or takes their mean (trl).
    ORPO: the cross entropy is of the chosen answers (paper, eq. 6, which has P(y|x)), or also of their prompts (trl).
    """
    models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (policy, reference)]
    half, chosen, shares = len(rows) // 2, [], []
    for tokens, marks in rows:
        ids, mark = torch.tensor(tokens), torch.tensor(marks[1:]).bool()
        each = [m(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0] for m in models]
        ratio = (each[0] - each[1].detach())[mark]
        mean = each[0][mark].mean()
        odds = mean - torch.log(-torch.expm1(mean))
        shares.append((ratio.sum() if form == "paper" else ratio.mean()) if name == "ipo" else odds)
        chosen.append(each[0][mark] if form == "paper" else each[0])
    gap = torch.stack(shares[:half]) - torch.stack(shares[half:])
    if name == "ipo":
        loss = ((gap - 1 / (2 * 0.3)) ** 2).mean()
    else:
        loss = -torch.cat(chosen[:half]).mean() - 0.4 * F.logsigmoid(gap).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), {n: p.grad for n, p in models[0].named_parameters() if p.grad is not None}


def compared(first: tuple[float, Grads], second: tuple[float, Grads]) -> dict[str, float]:
    """How far two losses and their gradients are from each other, as shares of the second."""
    assert first[1].keys() == second[1].keys()
    mine, theirs = (torch.cat([g[n].flatten().double() for n in sorted(g)]) for _, g in (first, second))
    return {
        "loss": first[0],
        "other loss": second[0],
        "relative difference of the loss": abs(first[0] - second[0]) / abs(second[0]),
        "relative difference of the gradient": float((mine - theirs).norm() / theirs.norm()),
    }


def main() -> None:
    """Run TRL, then ours; print and write what differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--python", help="an interpreter with TRL; by default one is made for it (.venv-llm-trl)")
    args = parser.parse_args()
    python = Path(args.python) if args.python else venvs.ensure("llm-trl", TRL)
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        policy, reference = make_models(folder)
        (folder / "data.json").write_text(json.dumps(make_data()))
        command = [str(python), str(Path(__file__).with_name("peer_trl_losses.py")), "--policy", policy]
        command += ["--reference", reference, "--data", str(folder / "data.json"), "--out", scratch]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        for name, told in json.loads((folder / "told.json").read_text()).items():
            kind, back = name.removesuffix("_back"), name.endswith("_back")
            models = (reference, policy) if back else (policy, reference)
            mine = ours(kind, *models, segments(told["rows"], told["label"]))
            theirs = told["loss"], load_file(str(folder / f"{name}.safetensors"))
            found[name] = compared(mine, theirs)
            if kind == "kto":
                found[name]["z0"] = point_of(*models, segments(told["rows"], told["label"]))
            if kind in ("ipo", "orpo"):
                found[f"{name}, ours beside the paper's form"] = compared(
                    mine, by_equation(kind, "paper", *models, told["rows"])
                )
                found[f"{name}, TRL beside its form"] = compared(theirs, by_equation(kind, "trl", *models, told["rows"]))
    for name, numbers in found.items():
        print(f"{name:36}", "  ".join(f"{value:.3e}" for value in numbers.values()))
    if args.out:
        versions = {k: v for k, v in venvs.versions(python).items() if k in ("trl", "transformers", "torch", "python")}
        args.out.write_text(json.dumps({"machine": machine.facts(), "versions": versions, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
