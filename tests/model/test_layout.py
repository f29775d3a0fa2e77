from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_lightning.data.federated import DataSpec
from pfl_lightning.model.layout import Layout, Span, flatten
from pfl_lightning.nets import CNN, Net, ResNet8

COLOUR = DataSpec((3, 32, 32), 10)


def tiny() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, (4, 5)), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2))


def images(spec: DataSpec, n: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(n, *spec.shape).to(memory_format=torch.channels_last), torch.arange(n)


def test_parameters_come_first_then_float_buffers() -> None:
    layout = Layout.of(tiny())
    sizes = [("0.weight", 120), ("0.bias", 3), ("1.weight", 3), ("1.bias", 3), ("3.weight", 6), ("3.bias", 2)]
    sizes += [("1.running_mean", 3), ("1.running_var", 3)]
    assert [(s.name, s.stop - s.start) for s in layout.spans] == sizes
    assert [s.start for s in layout.spans[1:]] == [s.stop for s in layout.spans[:-1]]
    assert layout.num_parameters == 137
    assert layout.size == 143
    assert layout.parameter_spans == layout.spans[:6]
    assert layout.spans[0] == Span("0.weight", 0, 120, torch.Size((3, 2, 4, 5)))


def test_constants_outside_the_state_dict_have_no_place() -> None:
    module = nn.Linear(2, 1)
    module.register_buffer("scale", torch.ones(1), persistent=False)
    assert [s.name for s in Layout.of(module).spans] == ["weight", "bias"]


def test_tied_parameters_appear_once_and_stay_tied() -> None:
    module = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    module[1].weight = module[0].weight
    layout = Layout.of(module)
    assert layout.size == 9
    vector, _ = flatten(module, layout)
    vector.fill_(2.0)
    assert module[1].weight is module[0].weight
    assert torch.equal(module(torch.ones(1, 3)), torch.full((1, 3), 36.0))


def test_where_marks_the_entries_of_the_named_tensors() -> None:
    layout = Layout.of(tiny())
    mask = layout.where(["0.bias", "1.running_var"])
    assert mask.nonzero().flatten().tolist() == [120, 121, 122, 140, 141, 142]
    with pytest.raises(KeyError, match="nothing"):
        layout.where(["nothing"])


def test_fingerprint_tells_names_shapes_and_kinds_apart() -> None:
    prints = {
        Layout.of(module).fingerprint()
        for module in (
            nn.Linear(2, 3),
            nn.Linear(3, 2),
            nn.Linear(2, 3, bias=False),
            nn.Sequential(nn.Linear(2, 3)),
            nn.BatchNorm1d(2),
            nn.BatchNorm1d(2, track_running_stats=False),
        )
    }
    assert len(prints) == 6
    assert Layout.of(nn.Linear(2, 3)).fingerprint() == Layout.of(nn.Linear(2, 3)).fingerprint()


def test_another_float_type_is_refused_by_name() -> None:
    module = tiny()
    module[3].double()
    with pytest.raises(ValueError, match=r"3\.weight is torch\.float64"):
        Layout.of(module)
    assert Layout.of(tiny().double()).size == 143


def test_views_put_convolutions_in_channels_last_order() -> None:
    module = tiny()
    layout = Layout.of(module)
    vector = torch.arange(143.0)
    weight = layout.views(vector)["0.weight"]
    assert weight.shape == (3, 2, 4, 5)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    o, i, h, w = 2, 1, 3, 4
    assert weight[o, i, h, w] == ((o * 4 + h) * 5 + w) * 2 + i
    assert layout.views(vector)["3.weight"].tolist() == [[129, 130, 131], [132, 133, 134]]
    weight.zero_()
    assert vector[:120].eq(0).all()
    assert vector[120] == 120


def test_views_of_a_parameter_vector_hold_parameters_only() -> None:
    layout = Layout.of(tiny())
    assert list(layout.views(torch.zeros(137))) == [s.name for s in layout.parameter_spans]
    with pytest.raises(ValueError, match="143 or 137"):
        layout.views(torch.zeros(140))


def test_vector_and_module_are_the_same_memory() -> None:
    module = tiny()
    old = {name: t.clone() for name, t in module.state_dict().items()}
    layout = Layout.of(module)
    vector, grad = flatten(module, layout)
    assert vector.shape == (143,)
    assert grad.shape == (137,)
    assert all(torch.equal(t, old[name]) for name, t in module.state_dict().items())
    vector.mul_(2)
    assert torch.equal(module[0].weight, 2 * old["0.weight"])
    assert torch.equal(module[1].running_var, 2 * old["1.running_var"])
    with torch.no_grad():
        module[3].bias.fill_(7.0)
        module[1].running_mean.fill_(8.0)
    assert vector[135:].tolist() == [7, 7, 8, 8, 8, 2, 2, 2]


def step(model: nn.Module, x: Tensor, y: Tensor, optimizer: torch.optim.Optimizer) -> tuple[Tensor, Tensor]:
    output = model(x)
    loss = cross_entropy(output, y)
    loss.backward()
    optimizer.step()
    return output.detach(), loss.detach()


@pytest.mark.parametrize("net", [CNN, ResNet8])
def test_flattening_changes_no_bit_of_training(net: type[Net]) -> None:
    torch.manual_seed(0)
    plain = net(COLOUR).to(memory_format=torch.channels_last)
    flat = copy.deepcopy(plain)
    layout = Layout.of(flat)
    vector, grad = flatten(flat, layout)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3) for m in (plain, flat)]
    x, y = images(COLOUR)
    for _ in range(3):
        optimizers[0].zero_grad()
        grad.zero_()
        results = [step(m, x, y, o) for m, o in zip((plain, flat), optimizers, strict=True)]
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])
        gradients = layout.views(grad)
        assert all(torch.equal(p.grad, gradients[name]) for name, p in plain.named_parameters())
    views = layout.views(vector)
    assert all(torch.equal(t, views[name]) for name, t in plain.state_dict().items() if name in views)
    assert len(views) == sum(t.is_floating_point() for t in plain.state_dict().values())


def test_gradients_accumulate_in_place_with_the_strides_of_their_parameters() -> None:
    torch.manual_seed(0)
    model = ResNet8(COLOUR)
    _, grad = flatten(model, Layout.of(model))
    places = [p.grad.data_ptr() for p in model.parameters()]
    assert all(p.grad.stride() == p.stride() for p in model.parameters())
    x, y = images(COLOUR)
    cross_entropy(model(x), y).backward()
    once = grad.clone()
    assert once.ne(0).any()
    cross_entropy(model(x), y).backward()
    torch.testing.assert_close(grad, 2 * once, rtol=1e-3, atol=1e-5)
    grad.zero_()
    cross_entropy(model(x), y).backward()
    assert [p.grad.data_ptr() for p in model.parameters()] == places


def test_batch_norm_statistics_live_in_the_vector() -> None:
    module = tiny()
    layout = Layout.of(module)
    vector, _ = flatten(module, layout)
    x = torch.randn(6, 2, 4, 5)
    expected = 0.1 * module[0](x).mean((0, 2, 3))
    before = vector.clone()
    module.train()(x)
    torch.testing.assert_close(vector[137:140], expected)
    assert torch.equal(vector[:137], before[:137])
    assert module[1].num_batches_tracked == 1
    after = vector.clone()
    module.eval()(x)
    assert torch.equal(vector, after)


def test_copies_are_independent_and_equal() -> None:
    module = tiny()
    layout = Layout.of(module)
    vector, _ = flatten(module, layout)
    before = vector.clone()
    twin = copy.deepcopy(module)
    other, _ = flatten(twin, layout)
    assert torch.equal(other, before)
    vector.zero_()
    assert torch.equal(other, before)
    assert twin[0].weight.stride() == module[0].weight.stride()


def test_state_dict_round_trip() -> None:
    module, plain = tiny(), tiny()
    vector, _ = flatten(module, Layout.of(module))
    vector.add_(1.0)
    plain.load_state_dict(module.state_dict())
    x = torch.randn(3, 2, 4, 5)
    torch.testing.assert_close(plain.eval()(x), module.eval()(x))
    assert all(torch.equal(t, module.state_dict()[name]) for name, t in plain.state_dict().items())
    wanted = vector.clone()
    saved = {name: t.clone() for name, t in plain.state_dict().items()}
    vector.zero_()
    module.load_state_dict(saved)
    assert torch.equal(vector, wanted)
