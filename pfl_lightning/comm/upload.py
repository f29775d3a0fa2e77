"""What a client sends to the server at the end of a visit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Upload:
    """Everything that leaves a client at the end of a visit."""

    client: int
    values: dict[str, Tensor]
    """The tensors to be averaged, by name. `vector` is the model."""
    weight: float
    """The client's fraction of the total weight of the round, in [0, 1]."""
    sends: dict[str, Tensor] = field(default_factory=dict)
    """Per name a bool tensor of the sent entries. A name without one is sent whole."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Anything the server compares or combines client by client. It is kept until the round ends."""
    bytes: int | None = None
    """Bytes on the wire. None: float32 for each entry sent, one byte per uint8, one bit per bool."""

    def count_sent(self) -> list[Tensor]:
        """The numbers that `count_bytes` needs: the number of sent entries of each tensor not sent whole."""
        return [self.sends[name].count_nonzero() for name in self.values if name in self.sends and self.bytes is None]

    def count_bytes(self, sent: Sequence[float] | None = None) -> int:
        """Bytes on the wire.

        Args:
            sent: the values of `count_sent`, if they have been read already.
        """
        if self.bytes is not None:
            return self.bytes
        parts = sum(int(number) for number in (self.count_sent() if sent is None else sent))
        whole = sum(value.numel() for name, value in self.values.items() if name not in self.sends)
        extra = sum(_tensor_bytes(value) for value in self.extra.values() if isinstance(value, Tensor))
        return 4 * (parts + whole) + extra


def _tensor_bytes(tensor: Tensor) -> int:
    if tensor.dtype == torch.bool:
        return (tensor.numel() + 7) // 8
    return tensor.numel() * (1 if tensor.dtype == torch.uint8 else 4)
