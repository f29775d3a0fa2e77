"""Holding out training samples of a client, to choose a setting on them."""

from __future__ import annotations

import torch
from torch import Tensor

from pfl_lightning.foundation.seeds import derive_seed
from pfl_lightning.model.client import ClientModule


def hold_out(client: ClientModule, fraction: float) -> Tensor:
    """Keep a fraction of the training samples (rounded down) out of this visit's training.

    They are the same at every visit, so no model of the client has ever been trained on them.

    Returns:
        Their indices. A client with too few samples has none.
    """
    indices = client.data.train_indices(client.id)
    shuffle = torch.Generator().manual_seed(derive_seed(client.seed, "validation", client.id))
    order = indices[torch.randperm(len(indices), generator=shuffle)]
    count = int(fraction * len(order))
    client.train_indices = order[count:]
    return order[:count]
