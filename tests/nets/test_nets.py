from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from pfl_lightning import nets
from pfl_lightning.data.federated import DataSpec
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.nets import CNN, MLP, LeNet, Net, ResNet8, ResNet9, ResNet10, ResNet18, SmallCNN

GREY = DataSpec((1, 28, 28), 10)
COLOUR = DataSpec((3, 32, 32), 10)
ALL = [getattr(nets, name) for name in nets.__all__ if name not in ("Net", "LSTM", "Powers")]
"""The nets for images; the others are tested with the data they are for."""


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("net", "shape", "classes", "parameters"),
    [
        (CNN, (3, 32, 32), 10, 878_538),  # CIFAR-10, SVHN
        (CNN, (3, 32, 32), 100, 924_708),  # CIFAR-100
        (CNN, (1, 28, 28), 62, 608_702),  # EMNIST
        (CNN, (1, 28, 28), 10, 582_026),  # MNIST, Fashion-MNIST
        (CNN, (1, 28, 28), 11, 582_539),  # OrganMNIST
        (LeNet, (3, 32, 32), 10, 62_006),
        (SmallCNN, (1, 28, 28), 10, 10_290),
        (ResNet8, (3, 32, 32), 10, 1_235_274),
        (ResNet8, (1, 28, 28), 10, 1_229_002),
        (ResNet10, (3, 32, 32), 100, 4_957_092),
        (ResNet9, (3, 32, 32), 10, 6_573_130),
        (ResNet18, (3, 32, 32), 10, 11_181_642),
        (ResNet18, (1, 28, 28), 10, 11_181_642),
        (MLP, (1, 28, 28), 10, 199_210),
    ],
)
def test_the_number_of_parameters_is_the_papers(
    net: type[Net], shape: tuple[int, ...], classes: int, parameters: int
) -> None:
    assert count(net(DataSpec(shape, classes))) == parameters


def test_small_cnn_counts_as_the_paper_prints() -> None:
    net = SmallCNN(GREY)
    assert count(net.body) == 10 * 25 + 10 + 20 * 10 * 25 + 20 == 5_280
    assert count(net.head) == 500 * 10 + 10
    assert count(SmallCNN(GREY, padding=0)) == 8_490


@pytest.mark.parametrize("spec", [GREY, COLOUR], ids=["28x28x1", "32x32x3"])
@pytest.mark.parametrize("net", ALL)
def test_shapes(net: type[Net], spec: DataSpec) -> None:
    model = net(spec).eval()
    x = torch.randn(2, *spec.shape)
    with torch.no_grad():
        features = model.body(x)
        outputs = model(x)
    assert isinstance(model.head, nn.Linear)
    assert features.shape == (2, model.head.in_features)
    assert outputs.shape == (2, 10)
    assert torch.equal(outputs, model.head(features))


@pytest.mark.parametrize(
    ("net", "spec", "features"),
    [
        (CNN, GREY, 512),
        (LeNet, COLOUR, 84),
        (SmallCNN, GREY, 500),
        (ResNet8, COLOUR, 256),
        (ResNet10, COLOUR, 512),
        (ResNet9, COLOUR, 512),
        (ResNet18, GREY, 512),
        (MLP, GREY, 200),
    ],
)
def test_features(net: type[Net], spec: DataSpec, features: int) -> None:
    assert net(spec).head.in_features == features


def test_cnn_flattens_to_the_papers_sizes() -> None:
    assert CNN(COLOUR).body.fc1.in_features == 1600
    assert CNN(GREY).body.fc1.in_features == 1024
    assert LeNet(COLOUR).body.fc1.in_features == 400


def swap_pool_and_relu(module: nn.Module) -> int:
    """Put every ReLU that follows a pool before it, as the papers write it; say how many there were."""
    swapped = 0
    for child in module.modules():
        if not isinstance(child, nn.Sequential):
            continue
        layers = list(child.named_children())
        for i in range(len(layers) - 1):
            if isinstance(layers[i][1], nn.MaxPool2d) and isinstance(layers[i + 1][1], nn.ReLU):
                layers[i], layers[i + 1] = layers[i + 1], layers[i]
                swapped += 1
        child._modules = OrderedDict(layers)
    return swapped


@pytest.mark.parametrize(
    ("net", "pools"),
    [(CNN, 2), (LeNet, 2), (SmallCNN, 2), (ResNet8, 1), (ResNet10, 1), (ResNet18, 1), (ResNet9, 3)],
)
def test_pool_before_relu_is_exactly_relu_before_pool(net: type[Net], pools: int) -> None:
    spec = DataSpec((3, 16, 16), 10)
    x, y = torch.randn(3, *spec.shape), torch.tensor([1, 5, 7])
    x[0, :, :, 8:] = 0.5  # a constant half: windows full of ties
    ours = net(spec)
    theirs = net(spec)
    theirs.load_state_dict(ours.state_dict())
    assert swap_pool_and_relu(theirs) == pools
    outputs = [model(x) for model in (ours, theirs)]
    assert torch.equal(*outputs)
    for output in outputs:
        cross_entropy(output, y).backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    assert all(torch.equal(p.grad, gradients[name]) for name, p in ours.named_parameters())


@pytest.mark.parametrize("spec", [GREY, COLOUR], ids=["28x28x1", "32x32x3"])
@pytest.mark.parametrize("net", ALL)
def test_a_channels_last_step_trains_every_parameter(net: type[Net], spec: DataSpec) -> None:
    model = net(spec).to(memory_format=torch.channels_last)
    x = torch.randn(4, *spec.shape).to(memory_format=torch.channels_last)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = cross_entropy(model(x), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_channels_last_gives_the_same_outputs() -> None:
    model = LeNet(COLOUR)
    x = torch.randn(4, *COLOUR.shape)
    plain = model(x)
    last = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, plain)


@pytest.mark.parametrize(("net", "layers"), [(ResNet18, 20), (ResNet8, 9), (ResNet10, 12), (ResNet9, 8), (CNN, 0)])
def test_number_of_batch_norms(net: type[Net], layers: int) -> None:
    assert sum(isinstance(module, _BatchNorm) for module in net(COLOUR).modules()) == layers


def test_resnet18_is_torchvisions() -> None:
    from torchvision.models import resnet18

    theirs = resnet18(num_classes=10).eval()
    ours = ResNet18(COLOUR).eval()
    names = {name: name.removeprefix("body.").replace("head.", "fc.") for name in ours.state_dict()}
    ours.load_state_dict({name: theirs.state_dict()[old] for name, old in names.items()})
    assert set(names.values()) == set(theirs.state_dict())
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours(x), theirs(x))
    grey = ResNet18(GREY).eval()
    grey.load_state_dict(ours.state_dict())
    assert torch.equal(grey(x[:, :1]), theirs(x[:, :1].expand(-1, 3, -1, -1).contiguous()))


@pytest.mark.parametrize(("net", "smallest"), [(CNN, 16), (LeNet, 16), (SmallCNN, 12), (ResNet9, 8)])
def test_too_small_images_are_refused_by_name_and_size(net: type[Net], smallest: int) -> None:
    fits = net(DataSpec((3, smallest, smallest), 10)).eval()
    assert fits(torch.zeros(1, 3, smallest, smallest)).shape == (1, 10)
    with pytest.raises(ConfigError, match=rf"task\.net: {net.__name__} .*at least {smallest}x{smallest}.* has 32x7"):
        net(DataSpec((3, 32, 7), 10))


def test_other_data_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task\.net: .*\(4,\).*MLP"):
        CNN(DataSpec((4,), 2))
    with pytest.raises(ConfigError, match=r"task\.net: .*2 channels.*1 or 3"):
        ResNet18(DataSpec((2, 32, 32), 10))
    with pytest.raises(ConfigError, match=r"task\.net\.hidden: \[8, 0\]"):
        MLP(GREY, hidden=(8, 0))
    with pytest.raises(ConfigError, match=r"task\.net\.padding: -1"):
        SmallCNN(GREY, padding=-1)


def test_mlp_sizes() -> None:
    assert count(MLP(DataSpec((5,), 3), hidden=())) == 18
    assert count(MLP(DataSpec((5,), 3), hidden=(7,))) == 42 + 24


@pytest.mark.parametrize("net", ALL)
def test_found_by_name_from_yaml(net: type[Net]) -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--net", type=Callable[[DataSpec], Net])
    made = parser.instantiate(parser.parse_args([f"--net={net.__name__}"])).net(GREY)
    assert type(made) is net


def test_options_from_yaml() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--net", type=Callable[[DataSpec], Net])
    parsed = parser.parse_object({"net": {"class_path": "MLP", "init_args": {"hidden": [30]}}})
    assert parser.instantiate(parsed).net(GREY).head.in_features == 30
