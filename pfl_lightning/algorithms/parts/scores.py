"""How much each parameter matters to a client: the scores that masks are made from.

Every score is a tensor [P], larger = more worth keeping, and goes with any selection of `pfl_lightning.model.masks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from pfl_lightning.model.client import ClientModule
from pfl_lightning.model.training_run import ensure_started
from pfl_lightning.tasks.task import TaskLoss

ScoreName = Literal["obp", "obp_legacy", "gradient", "fisher", "fisher_batch", "fisher_literal", "perturbation"]

ENTRIES_AT_ONCE = 1 << 25
"""Bound on the entries of the per-sample gradients that exist at one time: 128 MiB of float32."""


def obp(own: Tensor, received: Tensor) -> Tensor:
    """FedOBP, Eq. 19: (θ_i − θ_g)², the client's model after its last training against the one just received."""
    return (own - received).square_()


def obp_legacy(own: Tensor, received: Tensor) -> Tensor:
    """|(θ_i − θ_g)·θ_i|, the earlier form of FedOBP's score, which its Table 8 was made with."""
    return (own - received).mul_(own).abs_()


def gradient(before: Tensor, after: Tensor) -> Tensor:
    """FedOBP, Eq. 5: |θ̃ − θ|, how far a training moved each parameter. Known only after it (PSPFL, FedSelect)."""
    return (before - after).abs_()


def perturbation(theta: Tensor, gradient: Tensor, hessian: bool = False) -> Tensor:
    """The effect of zeroing a parameter on the loss: |g·θ|, or |−g·θ + ½ g²θ²| with the Hessian term (FedPURIN,
    FedCAC).

    Args:
        theta: the trained parameters.
        gradient: of the last batch; or the change of θ in the round, which stands in for it.
        hessian: add the second-order term, the Hessian's diagonal taken as g².
    """
    product = gradient * theta
    return (product.square().mul_(0.5) - product).abs_() if hessian else product.abs_()


def fisher(client: ClientModule) -> Tensor:
    """The diagonal of the empirical Fisher matrix: the mean over the client's training samples of the squared gradient
    of each one's loss. FedOBP calls its Eq. 6 by this name, but prints `fisher_literal`.

    Of the client's present model, in evaluation mode: BatchNorm has no statistics of a single sample. Samples go in
    chunks that `ENTRIES_AT_ONCE` bounds, so that memory does not grow with their number.
    """
    client.task.eval()
    ensure_started(client.task)
    loss = TaskLoss(client.task)
    parameters = {f"task.{name}": p.detach() for name, p in client.task.named_parameters()}

    def sample_loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        value: Tensor = functional_call(loss, parameters, (x[None], y[None]))
        return value

    sample_gradients = vmap(grad(sample_loss), in_dims=(None, 0, 0))
    total = torch.zeros_like(client.theta)
    views = client.layout.views(total)
    indices = client.train_indices
    for chunk in torch.split(indices, max(1, ENTRIES_AT_ONCE // max(1, len(total)))):
        if len(chunk):
            x, y = client.data.batch(chunk, client.vector.device)
            for name, gradients in sample_gradients(parameters, x, y).items():
                views[name.removeprefix("task.")] += gradients.square().sum(0)
    return total / max(1, len(indices))


def fisher_batch(client: ClientModule) -> Tensor:
    """A cheap stand-in for `fisher`: the mean of squared *batch* gradients. It underestimates, since squares are taken
    after samples have cancelled each other. How much depends on the batch size.
    """
    client.task.eval()
    total = torch.zeros_like(client.theta)
    for batch in client.batches("score"):
        client.compute_gradient(batch)
        total.addcmul_(client.grad, client.grad, value=len(batch[1]) / client.num_samples)
    return total


def fisher_literal(client: ClientModule) -> Tensor:
    """FedOBP, Eq. 6 as it is printed: the square of the gradient of the client's mean loss, in evaluation mode."""
    client.task.eval()
    total = torch.zeros_like(client.theta)
    for batch in client.batches("score"):
        client.compute_gradient(batch)
        total.add_(client.grad, alpha=len(batch[1]) / client.num_samples)
    return total.square_()


OF_DIFFERENCE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"obp": obp, "obp_legacy": obp_legacy}
"""Scores of the client's own parameters against those it has just received."""
OF_MODEL: dict[str, Callable[[ClientModule], Tensor]] = {
    "fisher": fisher,
    "fisher_batch": fisher_batch,
    "fisher_literal": fisher_literal,
}
"""Scores of the client's present model on its own training data."""
