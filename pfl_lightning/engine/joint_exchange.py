"""Downloads and uploads of several clients at once (`loop.clients_per_step`), where the method has the usual ones.

A method with a download or upload of its own works client by client, as without a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from pfl_lightning.algorithm import Algorithm, Server
from pfl_lightning.engine.engine import Invitation, VisitResult
from pfl_lightning.engine.lockstep import LockstepClient
from pfl_lightning.engine.stopwatch import Stopwatch
from pfl_lightning.engine.visit import Start, accept, end_visit, naming_divergence, read_results, start_visit, take_out
from pfl_lightning.engine.visit_checks import check_mask
from pfl_lightning.model.masks import layer_counts


class JointExchange:
    """Starts and ends the visits of live models whose vectors are rows of a tensor.

    Args:
        vectors: their vectors. # [clients, S]
        algorithm: how clients cooperate.
    """

    def __init__(self, vectors: Tensor, algorithm: Algorithm) -> None:
        self.vectors, self.algorithm = vectors, algorithm
        self.downloads = type(algorithm).download is Algorithm.download
        self.uploads = type(algorithm).upload is Algorithm.upload

    def start(
        self, clients: Sequence[LockstepClient], invitations: Iterable[Invitation], server: Server
    ) -> list[Start]:
        """Load the invited clients into the first live models, and run `download`."""
        together = self.downloads and len(clients) > 1
        starts: list[Start] = []
        watch = Stopwatch(self.vectors.device)
        for client, invitation in zip(clients, invitations, strict=True):
            with client.own_rng(), naming_divergence(client):
                if together:
                    accept(client, invitation, self.algorithm, server)
                else:
                    starts.append(start_visit(client, invitation, self.algorithm, server))
        return self._download(clients, server, watch) if together else starts

    def _download(self, clients: Sequence[LockstepClient], server: Server, together: Stopwatch) -> list[Start]:
        """`Algorithm.download` for all of them. The host waits for a GPU once."""
        rows, masks = self.vectors[: len(clients)], torch.stack([client.mask for client in clients])
        totals = masks.count_nonzero(1).tolist()
        rows.copy_(torch.where(masks, rows, server.vector) if any(totals) else server.vector)
        watches = [Stopwatch(rows.device) for _ in clients]
        starts: list[Start] = []
        counts = layer_counts(masks, clients[0].layout)
        for client, total, personal, watch in zip(clients, totals, counts, watches, strict=True):
            client.know_personal(total)
            with client.own_rng(), naming_divergence(client):  # an `exchange` of the method may draw random numbers
                starts.append(Start(personal, self.algorithm.down_bytes(client, server), watch))
        together.lap("download")
        for watch in watches:
            watch.add(together, 1 / len(clients))
            watch.lap(None)
        return starts

    def end(
        self,
        clients: Sequence[LockstepClient],
        starts: Sequence[Start],
        before: Sequence[Tensor],
        after: Sequence[Tensor],
        server: Server,
    ) -> Iterator[list[VisitResult]]:
        """Take out the uploads and states, given the sums of the tests before and after training."""
        visits = zip(clients, starts, before, after, strict=True)
        if not self.uploads or len(clients) == 1:
            for client, start, first, last in visits:
                start.watch.lap(None)
                with client.own_rng(), naming_divergence(client):
                    result = end_visit(client, start, first, last, self.algorithm, server)
                yield [result]
            return
        watch = Stopwatch(self.vectors.device)
        for client in clients:
            check_mask(client, self.algorithm)
        models, masks = self.vectors[: len(clients)].clone(), torch.stack([client.mask for client in clients])
        watch.lap("upload")
        endings = []
        for row, (client, start, first, last) in enumerate(visits):
            start.watch.add(watch, 1 / len(clients))
            start.watch.lap(None)
            with client.own_rng(), naming_divergence(client):
                upload = self.algorithm.upload_model(client, models[row])
                endings.append(take_out(client, start, first, last, self.algorithm, upload, masks[row]))
        yield read_results(endings)
