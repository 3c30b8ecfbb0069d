"""Acts with exported ONNX policies in a process that knows neither runnel nor torch: `python onnx_child.py FOLDER ...`."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def main(folders: list[Path]) -> None:
    for folder in folders:
        about = json.loads((folder / "policy.json").read_text())
        session = onnxruntime.InferenceSession(str(folder / about["files"]["onnx"]), providers=["CPUExecutionProvider"])
        given = np.load(folder / "given.npz")
        state = {
            name: np.zeros([len(given["obs_rows"]), *about["inputs"][name]["shape"][1:]], np.float32) for name in about["state"]
        }
        answers = {}
        for step in range(len(given["steps"])):
            fed = {name: given[f"{step}|{name}"] for name in about["inputs"] if name not in about["state"]}
            out = dict(zip(about["outputs"], session.run(None, {**fed, **state}), strict=True))
            state = {name: out.pop(after) for name, after in about["state"].items()}
            answers |= {f"{step}|{name}": value for name, value in out.items()}
        np.savez(folder / "answers.npz", **answers)
    assert not {"runnel", "torch"} & set(sys.modules)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
