"""The uploads of a round that no loop has run, for tests of means, tables and mixtures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from lightning.fabric import Fabric

from pfl_lightning.comm.ranks import Comm
from pfl_lightning.comm.upload import Upload
from pfl_lightning.comm.uploads import Uploads
from pfl_lightning.engine.cohort import Plan


def uploads_of(
    fabric: Fabric, clients_of: Sequence[Sequence[int]], uploads: Iterable[Upload] = (), round_: int = 1
) -> Uploads:
    """The closed uploads of a round, as this rank sees them.

    Args:
        fabric: a launched Fabric.
        clients_of: the clients that each rank trains.
        uploads: the uploads of any clients. Those of other ranks are left out, and a client without one has an empty
            upload.
        round_: the number of the round.
    """
    comm = Comm(fabric)
    comm.round = round_
    by_client = {upload.client: upload for upload in uploads}
    found = Uploads(comm, Plan([list(clients) for clients in clients_of]).owner)
    for client in clients_of[comm.rank]:
        found.add([by_client.get(client, Upload(client, {}, 0.0))])
    found.close()
    return found


def adversarial_uploads(partial: bool) -> list[Upload]:
    """Six uploads that a float mean would round differently in every order.

    An entry has values of 1e-6 beside 1e3, of both signs, with uneven weights.

    Args:
        partial: whether each client sends only a random half of its entries, and nobody the first ten.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = [7, 1, 130, 55, 8, 999]
    uploads = []
    for client, n in enumerate(sizes):
        scale = torch.tensor([1e-6, 1e3, 1.0])[(torch.arange(300) + client) % 3]
        value = torch.randn(300, generator=generator) * scale
        sent = torch.rand(300, generator=generator) < 0.5
        sent[:10] = False
        uploads.append(Upload(client, {"vector": value}, n / sum(sizes), {"vector": sent} if partial else {}))
    return uploads
