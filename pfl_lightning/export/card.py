"""The card of an exported model: where it comes from, how good it is, and how its inputs are made."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import yaml
from torch import nn

import pfl_lightning
from pfl_lightning.export.inputs import ScaledImages, ScaledNumbers
from pfl_lightning.export.predictor import NeighbourVote, Predictor, model_of
from pfl_lightning.export.saved_run import SavedRun
from pfl_lightning.monitor.client_tables import class_names

Card = dict[str, Any]


def make_card(run: SavedRun, predictor: Predictor, about: Card) -> Card:
    """The card of a model.

    Args:
        run: the run it comes from.
        predictor: the model.
        about: which model it is, and its test results.
    """
    loop, config = run.loop, {key: value for key, value in run.config.items() if key != "run_dir"}
    return {
        "method": type(loop.algorithm).__name__,
        **about,
        "round": run.round,
        "seed": loop.seed,
        "data": loop.data.name,
        "labels": list(class_names(loop.data)) if loop.data.kind == "classes" else None,
        "inputs": describe_inputs(run, predictor.inputs),
        "outputs": describe_outputs(run, predictor.model),
        **describe_vote(predictor.model),
        "net": type(model_of(run.live.task)).__name__,
        "parameters": sum(p.numel() for p in predictor.model.parameters()),
        "run": run.path.name,
        "versions": {"pfl_lightning": pfl_lightning.__version__, "torch": str(torch.__version__)},
        "sha256": {
            "config": hashlib.sha256(yaml.safe_dump(config, sort_keys=True).encode()).hexdigest(),
            "global_model": loop.model_sha256(),
            "server_file": run.manifest.server.sha256,
        },
        "config": config,
    }


def describe_inputs(run: SavedRun, module: nn.Module) -> Card:
    """Raw inputs, and how they become the inputs of the net."""
    x = run.loop.data.samples.x
    kind = "images" if run.loop.data.samples.are_images else "numbers" if x.is_floating_point() else "tokens"
    layout = "N, H, W, C" if kind == "images" else "N, " + ", ".join(map(str, x.shape[1:]))
    facts: Card = {"kind": kind, "dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape[1:])}
    facts["layout"] = layout
    if isinstance(module, ScaledImages | ScaledNumbers):
        facts |= {"shift": module.shift.tolist(), "scale": module.scale.tolist()}
        facts["normalisation"] = "(raw - shift) * scale" + (", then N, C, H, W" if kind == "images" else "")
    else:
        facts["normalisation"] = "none"
    return facts


def describe_outputs(run: SavedRun, model: nn.Module) -> str:
    """The meaning of the outputs."""
    count = run.loop.data.spec.num_classes
    if run.loop.data.kind == "numbers":
        return f"{count} predicted number{'s' * (count > 1)}"
    kind = "log-probabilities" if isinstance(model, NeighbourVote) else "logits"
    return f"{kind} of {count} classes"


def describe_vote(model: nn.Module) -> Card:
    """What kNN-Per adds to its net. The tensors `features` and `votes` are in the file. These numbers are not."""
    if not isinstance(model, NeighbourVote):
        return {}
    scale = model.features.shape[1] * model.sigma
    rule = (
        "q = net.body(inputs); d = squared distances of q to the rows of `features`, the k smallest of them; "
        "vote = softmax(-d / scale) @ their rows of `votes`; "
        "output = log(weight * vote + (1 - weight) * softmax(net.head(q)))"
    )
    return {"vote": {"rule": rule, "k": model.k, "weight": float(model.weight), "scale": float(scale)}}


def card_text(card: Card, name: str, has_onnx: bool) -> str:
    """The card in Markdown."""
    rows = {key: card[key] for key in ("method", "model", "client", "name", "round", "seed", "data", "net", "run")}
    rows |= {"train samples": card.get("train_samples"), "test samples": card.get("test_samples")}
    rows |= {f"{metric}": f"{value:.6g}" for metric, value in card["results"].items()}
    rows |= {"outputs": card["outputs"], "labels": ", ".join(card["labels"] or ())}
    rows |= {f"vote: {key}": value for key, value in card.get("vote", {}).items()}
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items() if value not in (None, ""))
    inputs = card["inputs"]
    scale = f" with shift {inputs['shift']} and scale {inputs['scale']}" if "shift" in inputs else ""
    hashes = "\n".join(f"- {key}: `{value}`" for key, value in card["sha256"].items())
    onnx = f"\n`{name}.onnx` takes raw inputs `inputs` and gives `outputs`, for batches of any size.\n" * has_onnx
    return f"""# {card["method"]}: {card["model"]}

| | |
|---|---|
{table}

## Inputs

Raw inputs are {inputs["kind"]}, {inputs["dtype"]} [{inputs["layout"]}]. The net takes {_net_inputs(inputs)}{scale}.

## Use

```python
from safetensors.torch import load_file

net.load_state_dict(load_file("{name}.safetensors"))  # net: a plain torch module with layers of the same names
```
{onnx}
## Origin

pfl_lightning {card["versions"]["pfl_lightning"]}, torch {card["versions"]["torch"]}. SHA-256:

{hashes}

```yaml
{yaml.safe_dump(card["config"], sort_keys=False).rstrip()}
```
"""


def _net_inputs(inputs: Card) -> str:
    return "them as they are" if inputs["normalisation"] == "none" else f"`{inputs['normalisation']}`"
