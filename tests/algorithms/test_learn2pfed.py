from __future__ import annotations
from pfl_lightning.algorithms import Learn2pFed
CONTRACT = [Learn2pFed(cells=3, warm_start=True), Learn2pFed(cells=4, tie_cells=True, learnable=("Lambda", "p"), start_layer="body.0", weighting="samples", inner_lr=0.5)]
