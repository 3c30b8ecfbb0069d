"""What the folder of a run gives to whoever uses its policy: recipe and config, parameters, and the policy as a client."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError
from runnel.flow.inference.inline import InlineClient
from runnel.flow.params import ChannelSubscriber, LocalChannel
from runnel.graphs.experiment import EvaluationSpec
from runnel.run import registry
from runnel.run.best import BestParams
from runnel.run.checkpoint import Checkpoints
from runnel.run.trust import check_code, recipe_of
from runnel.track.folder import Row, RunFolder


def open_run(run: str | Path, *, trust: bool = False, given: Collection[str] = ()) -> tuple[RunFolder, registry.Recipe, Row]:
    """A run's folder, recipe and config, if what they name may be run (`run/trust.py`). Without its own config a run would be
    taken for one of the recipe's defaults."""
    folder = RunFolder.open(run)
    folder.check_files()
    for path in (folder.info, folder.config):
        if not path.is_file():
            raise ConfigError("run", str(run), f"its {path.name} is missing; restore that file")
    recipe, config = recipe_of(folder), folder.read_config()
    check_code(folder.path, recipe, config, trust=trust, given=given)
    return folder, registry.load_recipe(recipe), config


def params_of(folder: RunFolder, *, best: bool) -> ParamSet:
    """The parameters of a run's newest good checkpoint, or of its best evaluation."""
    return BestParams(folder.best).load()[0] if best else Checkpoints(folder.checkpoints).newest_params()


@contextmanager
def client_of(folder: RunFolder, spec: EvaluationSpec, *, best: bool) -> Iterator[InlineClient]:
    """The policy of a run's newest good checkpoint, or of its best evaluation, as its evaluation asks it."""
    with serving(spec.inferencer(), params_of(folder, best=best)) as client:
        yield client


@contextmanager
def serving(inferencer: Inferencer, params: ParamSet) -> Iterator[InlineClient]:
    """A client of an inferencer that has loaded `params`."""
    channel = LocalChannel("policy", shared=False, depth=1)
    channel.publish(params.version, params.params)
    client = InlineClient(inferencer, ChannelSubscriber(channel))
    try:
        client.sync()
        yield client
    finally:
        client.close()


def steps_at(folder: RunFolder, version: int) -> int:
    """Environment steps of a run at a version with saved parameters. The checkpoint has them, or the row of its evaluation."""
    manifest = Checkpoints(folder.checkpoints).newest(("params",))[1]
    if manifest["version"] == version:
        return int(manifest["steps"])
    return next(
        (int(row["steps"]) for row in folder.read_rows()[0] if row.get("kind") == "eval" and row["version"] == version), 0
    )
