"""TRL's losses of preferences on one batch: its trainers make the batch, the loss and the gradient, which are written down."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def trainers(args: argparse.Namespace, pairs: list[dict[str, str]], rated: list[dict[str, Any]]) -> dict[str, Any]:
    """A trainer by the name of what it computes."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    batch = {"output_dir": str(args.out), "report_to": [], "use_cpu": True, "save_strategy": "no", "bf16": False}
    batch |= {"gradient_checkpointing": False, "per_device_train_batch_size": len(pairs)}
    tokenizer = AutoTokenizer.from_pretrained(args.policy)

    def model(folder: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def made(kind: Any, config: Any, rows: list[dict[str, Any]], **more: Any) -> Any:
        data = Dataset.from_list(rows)
        return kind(model=model(args.policy), args=config, processing_class=tokenizer, train_dataset=data, **more)

    out: dict[str, Any] = {}
    for name, loss in (("dpo", "sigmoid"), ("hinge", "hinge"), ("ipo", "ipo")):
        config = DPOConfig(**batch, loss_type=[loss], beta=0.3)
        out[name] = made(DPOTrainer, config, pairs, ref_model=model(args.reference))
    simpo = CPOConfig(**batch, loss_type="simpo", beta=2.0, simpo_gamma=1.0, cpo_alpha=0.0)
    out["simpo"] = made(CPOTrainer, simpo, pairs)
    out["cpo"] = made(CPOTrainer, CPOConfig(**batch, loss_type="sigmoid", beta=0.3, cpo_alpha=0.7), pairs)
    out["orpo"] = made(ORPOTrainer, ORPOConfig(**batch, beta=0.4), pairs)
    batch["per_device_train_batch_size"] = len(rated)
    for name, (policy, reference) in {"kto": (args.policy, args.reference), "kto_back": (args.reference, args.policy)}.items():
        config = KTOConfig(**batch, beta=0.3, desirable_weight=1.3, undesirable_weight=0.8)
        data = Dataset.from_list(rated)
        out[name] = KTOTrainer(
            model=model(policy), ref_model=model(reference), args=config, processing_class=tokenizer, train_dataset=data
        )
    return out


def rows_of(batch: Any) -> list[list[list[int]]]:
    """Rows of a batch as tokens and marks of the answer: chosen and rejected ones, then (KTO) mismatched ones."""
    found = []
    for ids, attention, marks in (
        ("input_ids", "attention_mask", "completion_mask"),
        ("KL_input_ids", "KL_attention_mask", "KL_completion_mask"),
        ("chosen_input_ids", "chosen_attention_mask", "chosen_labels"),
        ("rejected_input_ids", "rejected_attention_mask", "rejected_labels"),
    ):
        if ids in batch:
            for tokens, real, mark in zip(batch[ids], batch[attention].bool(), batch[marks], strict=True):
                own = mark != -100 if marks.endswith("labels") else mark == 1
                found.append([tokens[real].tolist(), own[real].int().tolist()])
    return found


def main() -> None:
    """Write losses, rows and gradients of all trainers."""
    parser = argparse.ArgumentParser()
    for name in ("policy", "reference", "data", "out"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    data = json.loads(Path(args.data).read_text())
    told: dict[str, Any] = {}
    for name, trainer in trainers(args, data["pairs"], data["rated"]).items():
        batch = next(iter(trainer.get_train_dataloader()))
        trainer.model.eval()
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        grads = {n: p.grad.clone() for n, p in trainer.model.named_parameters()}
        save_file(grads, str(Path(args.out) / f"{name}.safetensors"))
        told[name] = {"loss": loss.item(), "rows": rows_of(batch), "label": [bool(x) for x in batch.get("label", [])]}
    (Path(args.out) / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
