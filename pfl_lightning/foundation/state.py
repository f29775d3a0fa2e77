"""Named tensors: what a client keeps between visits and what a checkpoint stores."""

from __future__ import annotations

from torch import Tensor

State = dict[str, Tensor]
