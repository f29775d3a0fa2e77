"""The figures about a single run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from safetensors import SafetensorError

from pfl_lightning.checkpoint.contents import read_clients
from pfl_lightning.checkpoint.read_only import find_checkpoint
from pfl_lightning.foundation.errors import ConfigError
from pfl_lightning.foundation.state import State
from pfl_lightning.report import activations, curves, mask_overlap, personal_layers
from pfl_lightning.report.client_memory import LAMBDA, draw_memory, memory_table
from pfl_lightning.report.drawn import Drawn, Wishes
from pfl_lightning.report.forecasts import draw_forecasts
from pfl_lightning.report.groups import Reported
from pfl_lightning.report.mask_record import MASKS_FILE, MaskHistory
from pfl_lightning.report.run_data import RunData


def figures_of_run(run: RunData, shown: Reported, wishes: Wishes) -> Iterator[Drawn]:
    """Draw the figures about a single run that there is data for."""
    if (figure := curves.draw_moments(run, shown)) is not None:
        who = run.sample or "all clients"
        text = f"The models that every evaluation tests: {shown.metric.label}, mean over {who} (seed {run.seed})."
        yield Drawn("moments", "Tested models", text, figure)
    if run.personal is not None:
        text = (
            "Share of all personal parameters that lies in each layer, mean over the round's clients (FedOBP, Fig. 5)."
        )
        figure = personal_layers.draw_share_of_personal(run.personal)
        yield Drawn("personal-by-layer", "Where the personal parameters lie", text, figure)
        text = "Share of each tensor's own entries that is personal, mean over clients."
        figure = personal_layers.draw_share_of_tensor(run.personal)
        yield Drawn("personal-of-tensor", "Personal share of each tensor", text, figure)
    yield from _masks(run, wishes)
    yield from _memory(run, wishes)
    if forecasts := wishes.forecasts.get(run.path):
        text = "Predictions of personal models on test samples, against the truth."
        yield Drawn("forecasts", "Forecast against truth", text, draw_forecasts(forecasts))


def _masks(run: RunData, wishes: Wishes) -> Iterator[Drawn]:
    layer = wishes.layer or (run.personal and mask_overlap.default_layer(run.personal))
    if run.personal is not None and layer:
        masks = mask_overlap.masks_of_layer(
            _states(run, mask_overlap.MOST_CLIENTS), mask_overlap.layer_columns(run.personal, layer)
        )
        if len(masks) > 1:
            counts = run.label_counts if run.class_names else run.label_counts[:0]
            order, labels = mask_overlap.by_label(list(masks), counts)
            figure = mask_overlap.draw_overlap(mask_overlap.overlap([masks[c] for c in order]), labels, layer)
            text = (
                f"Overlap of the clients' personal parameters in {layer}, clients ordered by label (FedSelect, Fig. 4)."
            )
            yield Drawn("mask-overlap", "Similarity of masks", text, figure)
    if (run.path / MASKS_FILE).is_file():
        history = _history(run.path / MASKS_FILE)
        tensors = list(wishes.tensors) or activations.shown_tensors(history)
        clients = list(wishes.clients) or activations.most_visited(history)
        activations.check_choice(history, tensors, clients)
        text = "How often parameters were personal; S is the server (non-zero). Of convolutions the first kernel."
        figure = activations.draw_spread(history, clients, tensors)
        yield Drawn("activation-spread", "Activation frequency", f"{text} (FedPURIN, Fig. 5)", figure)
        figure = activations.draw_heat(history, clients, tensors)
        yield Drawn("activation-counts", "Activation counts", f"{text} (FedPURIN, Fig. 6)", figure)
    elif wishes.tensors or wishes.clients:
        raise ConfigError(f"tensors: {run.path} has no {MASKS_FILE}; make the run with --report.masks true")


def _memory(run: RunData, wishes: Wishes) -> Iterator[Drawn]:
    if not run.num_clients or (wishes.memory is None and run.method != "Learn2pFed"):
        return
    name = wishes.memory or LAMBDA
    table = memory_table(_states(run), name, run.num_clients)
    if table is not None:
        private = _private_columns(run) if name == LAMBDA else ()
        known = "Λ of each client: how much each parameter is held to the global one (Learn2pFed, Fig. 3)."
        text = known if name == LAMBDA else f"The tensor {name} in the memory of each client."
        yield Drawn("memory", "Λ per client" if name == LAMBDA else name, text, draw_memory(table, name, private))
    elif wishes.memory is not None:
        raise ConfigError(f"memory: clients of {run.path} have no tensor {name} of one size in their memory")


def _states(run: RunData, most: int | None = None) -> Iterator[tuple[int, State]]:
    """The states of clients (the first ones) at the last checkpoint. Nothing if the run keeps no checkpoints."""
    try:
        manifest = find_checkpoint(run.path)
    except ConfigError:
        return
    yield from read_clients(manifest, run.path / "checkpoints", manifest.trained[:most])


def _history(path: Path) -> MaskHistory:
    try:
        return MaskHistory.load(path)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ConfigError(f"run: {path} cannot be read: {error}") from error


def _private_columns(run: RunData) -> Sequence[int]:
    """The coefficients of Polynomial data that differ between clients: the highest powers."""
    data = run.config.get("data", {})
    if not str(data.get("class_path", "")).endswith(".Polynomial"):
        return ()
    return range(4 - int(data.get("init_args", {}).get("setting", 1)), 4)
