"""Exchanges that several methods use."""

from __future__ import annotations

import torch

from pfl_lightning.algorithm import Exchange
from pfl_lightning.model.client import ClientModule


def send_everything(client: ClientModule, bn_buffers: str) -> Exchange:
    """Send every entry, kept or not, except BatchNorm statistics that stay local."""
    sends = torch.ones_like(client.mask)
    if bn_buffers != "local":
        return Exchange(client.mask, sends, client.layout.size)
    sends[client.layout.num_parameters :] = False
    return Exchange(client.mask, sends, client.layout.num_parameters)
