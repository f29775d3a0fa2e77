"""Named tensors: the state of a client between visits, in memory and in checkpoints."""

from __future__ import annotations

from torch import Tensor

State = dict[str, Tensor]
