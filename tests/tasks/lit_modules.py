"""Three modules as users of Lightning write them. They know nothing of federations."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score


class Meter:
    """Collects values, as people write it for themselves."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def add(self, value: int) -> None:
        self.values.append(value)


class LitClassifier(LightningModule):
    """BatchNorm, dropout, torchmetrics attributes, a scheduler per epoch, and attributes that hooks set."""

    def __init__(self, in_features: int, num_classes: int, hidden: int = 8, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.backbone = nn.Sequential(
            nn.Linear(in_features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.2)
        )
        self.classifier = nn.Linear(hidden, num_classes)
        self.train_acc = MulticlassAccuracy(num_classes, average="micro")
        self.test_acc = MulticlassAccuracy(num_classes, average="micro")
        self.test_f1 = MulticlassF1Score(num_classes)
        self.seen = Meter()

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.backbone(x))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.train_acc(logits, y)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_acc", self.train_acc, on_step=False, on_epoch=True)
        # the loss depends on what hooks have set: a leak to the next client would change the model
        return loss * (1 + 0.01 * len(self.seen.values)) * (1 + 0.01 * self.current_epoch)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.add(len(batch[1]))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.test_acc(logits, y)
        self.test_f1(logits, y)
        self.log("test_acc", self.test_acc)
        self.log("test_f1", self.test_f1)
        self.log("test_loss", F.cross_entropy(logits, y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams["lr"], momentum=0.5, weight_decay=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class LitCollection(LightningModule):
    """A collection of metrics, a metric with list states, a scheduler per step, gradient hooks, a dict as output.

    Its parameters have no types, `setup` completes it, and its steps need an attribute that a hook sets.
    """

    better = {"MulticlassAccuracy": "higher"}  # noqa: RUF012

    def __init__(self, input_shape, num_classes):  # type: ignore[no-untyped-def]
        super().__init__()
        self.layer = nn.Linear(input_shape[0], 6)
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(6, num_classes)
        metrics = {"MulticlassAccuracy": MulticlassAccuracy(num_classes), "f1": MulticlassF1Score(num_classes)}
        self.val_metrics = torchmetrics.MetricCollection(metrics, prefix="val_")
        self.auroc = MulticlassAUROC(num_classes)
        self.register_buffer("average", torch.zeros(6))
        self.clipped = 0

    def setup(self, stage: str) -> None:
        self.scale = {"fit": 0.5}[stage]

    def on_train_start(self) -> None:
        self.start = self.out.bias.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.norm(self.layer(x))))

    def training_step(self, batch: Any) -> dict[str, Tensor]:
        x, y = batch
        logits = self(x)
        near = self.scale * (self.out.bias - self.start).square().sum()
        return {"loss": F.cross_entropy(logits, y) + near, "logits": logits.detach()}

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.clipped += 1
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.5)

    def on_train_epoch_end(self) -> None:
        self.average = 0.9 * self.average + 0.1 * self.norm.weight.detach()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        x, y = batch
        logits = self(x)
        self.val_metrics.update(logits, y)
        self.auroc.update(logits.softmax(1), y)
        self.log_dict(self.val_metrics, on_epoch=True)
        self.log("val_auroc", self.auroc)
        return logits

    def on_validation_epoch_end(self) -> None:
        self.log("val/average", self.average.mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class LitRegressor(LightningModule):
    """Predicts numbers, without a scheduler, and computes a metric at the end of the test."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(in_features, 5), nn.Tanh(), nn.Dropout(0.1), nn.Linear(5, 1))
        self.error = torchmetrics.MeanAbsoluteError()

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.mse_loss(self(batch[0]), batch[1])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        outputs = self(batch[0])
        self.error.update(outputs, batch[1])
        self.log("test_mse", F.mse_loss(outputs, batch[1]))

    def on_test_epoch_end(self) -> None:
        self.log("test_mae", self.error.compute())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)
