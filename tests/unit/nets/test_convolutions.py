"""Convolutions: however they are laid out, what comes out is a plain convolution's."""

import pytest
import torch
from torch.nn import functional as F

from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.core.spaces import ArraySpec
from runnel.nets.convolutions import Conv
from runnel.nets.layers import NetConfig, Torso

SHAPES = [
    pytest.param((4, 84, 84), torch.uint8, id="atari"),
    pytest.param((84, 84, 3), torch.uint8, id="channels-last"),
    pytest.param((3, 40, 44), torch.uint8, id="oblong"),
    pytest.param((3, 42, 50), torch.uint8, id="no-whole-blocks"),
    pytest.param((4, 84, 84), torch.float32, id="floats"),
    pytest.param((4, 10, 10), torch.uint8, id="board"),
    pytest.param((8, 8, 17), torch.float32, id="board-of-many-planes-last"),
    pytest.param((17, 8, 8), torch.float32, id="board-of-many-planes-first"),
]


LAST = {(84, 84, 3), (8, 8, 17)}
"""Shapes with channels last."""


def pixels(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(2)).to(dtype)


def plain(conv: Conv, image: torch.Tensor, parameters: list[torch.Tensor]) -> torch.Tensor:
    """The same network, spelled out in float64."""
    x = image.double() / (255.0 if image.dtype == torch.uint8 else 1.0)
    x = x.permute(0, 3, 1, 2) if tuple(image.shape[1:]) in LAST else x
    for i, layer in enumerate(conv.layers):
        x = F.relu(F.conv2d(x, parameters[2 * i], parameters[2 * i + 1], layer.stride))
    return x.flatten(1)


@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_it_is_a_plain_convolution(shape, dtype):
    conv = Conv(ArraySpec(shape, dtype), key="obs", seed=1)
    image, ours = pixels((3, *shape), dtype), list(conv.parameters())
    exact = [p.detach().double().requires_grad_() for p in ours]
    y, expected = conv(image), plain(conv, image, exact)
    torch.testing.assert_close(y, expected.float(), rtol=1e-4, atol=1e-5 * float(expected.detach().abs().max()))
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    grads = torch.autograd.grad((y * weights).sum(), ours)
    for grad, wanted in zip(grads, torch.autograd.grad((expected * weights).sum(), exact), strict=True):
        torch.testing.assert_close(grad, wanted.float(), rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


def test_leading_dimensions_and_memory_do_not_matter():
    conv = Conv(ArraySpec((4, 84, 84), torch.uint8), key="obs", seed=1)
    image = pixels((6, 4, 84, 84), torch.uint8)
    flat = conv(image)
    torch.testing.assert_close(conv(image.view(2, 3, 4, 84, 84)), flat.view(2, 3, -1))
    torch.testing.assert_close(conv(image[0]), flat[0])
    torch.testing.assert_close(conv(image[::2]), flat[::2])
    odd = torch.empty(image.numel() + 1, dtype=torch.uint8)[1:].view_as(image).copy_(image)
    torch.testing.assert_close(conv(odd), flat)
    with torch.no_grad():
        torch.testing.assert_close(conv(image.repeat(50, 1, 1, 1)), flat.repeat(50, 1))


@pytest.mark.parametrize("shape", [(8, 8, 8), (6, 7, 12), (9, 10, 7), (84, 4, 84)])
def test_a_shape_that_does_not_tell_its_channels_is_refused_until_it_is_said(shape):
    obs = {"obs": ArraySpec(shape)}
    with pytest.raises(ConfigError, match=r"net\.channels = 'auto': 'obs' of shape .* set net\.channels to first or last"):
        Torso(obs, NetConfig(), seed=1)
    first, last = (Torso(obs, NetConfig(channels=side, conv="small"), seed=1) for side in ("first", "last"))
    assert first.convs["obs"].layers[0].in_channels == shape[0]
    assert last.convs["obs"].layers[0].in_channels == shape[2]
    Torso(obs, NetConfig(conv="none"), seed=1)


def test_a_stack_of_frames_has_its_channels_first_whatever_its_shape():
    torso = Torso({"obs": ArraySpec((10, 10, 7), torch.uint8, stack=10)}, NetConfig(), seed=1)
    assert torso.convs["obs"].layers[0].in_channels == 10


def test_where_channels_are_is_not_said_of_vectors():
    with pytest.raises(UnusedSettingError, match=r"net\.channels = 'last': no part of the observation is convolved"):
        Torso({"obs": ArraySpec((4,))}, NetConfig(channels="last"), seed=1)
