"""TorchInferencer and EnvPolicy: merging, versions, parameter binding, snapshots, raw observations."""

import numpy as np
import pytest
import torch

from runnel.core.contracts.inference import Inferencer, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.nets.actor_critic import ActorCritic, build_body
from runnel.nets.inferencer import TorchInferencer
from runnel.nets.layers import NetConfig
from runnel.nets.policy import EnvPolicy

SPEC = EnvSpec({"obs": ArraySpec((4,))}, ActionSpec("discrete", num_actions=3, start=5))
BOX = EnvSpec({"obs": ArraySpec((2,))}, ActionSpec("continuous", shape=(1,), low=(-0.1,), high=(0.1,)))


def net(seed=0, spec=SPEC):
    return ActorCritic(spec, build_body(spec, NetConfig(), seed=seed))


def request(i, num=2, version=-1):
    generator = torch.Generator().manual_seed(i)
    rows = Batch(obs=torch.randn(num, 4, generator=generator), noise=torch.rand(num, 1, generator=generator))
    return Request(i, rows, version)


@pytest.mark.parametrize("merge", [True, False])
def test_answers_everything_pending(merge):
    inferencer = TorchInferencer(net(), merge=merge)
    assert isinstance(inferencer, Inferencer)
    requests = [request(i, num=i + 1) for i in range(3)]
    inferencer.submit(requests)
    assert inferencer.pending() == 3
    replies = inferencer.step()
    assert inferencer.pending() == 0
    assert [r.id for r in replies] == [0, 1, 2]
    for ask, reply in zip(requests, replies, strict=True):
        alone = net().act(ask.rows)
        assert torch.equal(reply.rows["action"], alone["action"])
        torch.testing.assert_close(reply.rows["logprob"], alone["logprob"])
    assert inferencer.step() == []


def test_merge_is_one_forward_pass():
    calls = []
    policy = net()
    inner = policy.act
    policy.act = lambda rows, *, greedy=False: calls.append(len(rows["obs"])) or inner(rows, greedy=greedy)
    inferencer = TorchInferencer(policy)
    inferencer.submit([request(0), request(1)])
    inferencer.step()
    assert calls == [4]


def test_shared_parameters_are_bound_and_copied_ones_keep_their_address():
    learner, inferencer = net(1), TorchInferencer(net(2))
    params = dict(learner.state_dict())
    inferencer.load_params(ParamSet(3, params, shared=True))
    pointers = {k: v.data_ptr() for k, v in inferencer.net.state_dict().items()}
    assert pointers == {k: v.data_ptr() for k, v in params.items()}
    with torch.no_grad():
        learner.body.nets.bias[2].add_(torch.tensor([0.0, 100.0, 0.0]))
    inferencer.load_params(ParamSet(4, params, shared=True))
    inferencer.submit([request(0)])
    (reply,) = inferencer.step()
    assert reply.version == 4
    assert reply.rows["action"].tolist() == [1, 1]
    inferencer.load_params(ParamSet(5, net(7).state_dict()))
    assert not torch.equal(learner.body.nets.weight[0], net(7).body.nets.weight[0])
    fixed = {k: v.data_ptr() for k, v in inferencer.net.state_dict().items()}
    inferencer.load_params(ParamSet(6, net(8).state_dict()))
    assert fixed == {k: v.data_ptr() for k, v in inferencer.net.state_dict().items()}
    assert torch.equal(inferencer.net.body.nets.weight[0], net(8).body.nets.weight[0])


def test_a_request_waits_for_its_version_and_can_be_aborted():
    inferencer = TorchInferencer(net())
    inferencer.submit([request(0, version=2), request(1), request(2, version=9)])
    assert [r.id for r in inferencer.step()] == [1]
    inferencer.abort([2])
    inferencer.load_params(ParamSet(2, net(1).state_dict()))
    (reply,) = inferencer.step()
    assert (reply.id, reply.version) == (0, 2)
    assert inferencer.pending() == 0


def test_snapshot_goes_on_bit_for_bit():
    first, second = TorchInferencer(net(1)), TorchInferencer(net(2))
    first.load_params(ParamSet(1, net(3).state_dict()))
    first.submit([request(0), request(1)])
    second.restore(first.snapshot())
    for a, b in zip(first.step(), second.step(), strict=True):
        assert (a.id, a.version) == (b.id, b.version)
        assert all(torch.equal(a.rows[k], b.rows[k]) for k in a.rows)


def flatten(obs):
    return {"obs": np.asarray(obs, dtype=np.float32)}


def test_env_policy_returns_what_an_environment_accepts():
    policy = EnvPolicy(net(), SPEC, flatten=flatten)
    one = policy.act(np.zeros(4))
    assert type(one) is int
    assert one in (5, 6, 7)
    batch = policy.act(np.zeros((3, 4)), deterministic=False)
    assert batch.shape == (3,)
    assert set(batch.tolist()) <= {5, 6, 7}
    assert policy.act(np.zeros(4), action_mask=np.array([0, 0, 1])) == 7
    policy.reset()


def test_env_policy_clips_to_the_box_and_refuses_a_wrong_shape():
    policy = EnvPolicy(net(spec=BOX), BOX, flatten=flatten)
    draws = np.stack([policy.act(np.ones(2), deterministic=False) for _ in range(20)])
    assert draws.shape == (20, 1)
    assert np.abs(draws).max() == pytest.approx(0.1)
    with pytest.raises(DataError, match="expected"):
        policy.act(np.zeros(3))
