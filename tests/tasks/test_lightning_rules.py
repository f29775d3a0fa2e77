"""What a LightningModule may do in a federation, and the one line for what cannot work."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lightning import LightningDataModule
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.regression import PearsonCorrCoef

from pfl_lightning import fit
from pfl_lightning.algorithms import FedAvg
from pfl_lightning.foundation.errors import ConfigError
from tests.helpers.lit_runs import lit_loop
from tests.helpers.toy import ToyData
from tests.tasks.lit_modules import LitClassifier

NO_TRAINER = "but a federation has no Trainer; "


class Manual(LitClassifier):
    def setup(self, stage: str) -> None:
        self.automatic_optimization = False


class OwnOptimizers(LitClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.optimizers().zero_grad()  # type: ignore[union-attr]
        return super().training_step(batch, batch_idx)


class Two(LitClassifier):
    def configure_optimizers(self) -> Any:
        return [SGD(self.parameters(), 0.1), SGD(self.parameters(), 0.1)]


class Plateau(LitClassifier):
    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), 0.1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "loss"}}


class AllSteps(LitClassifier):
    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), 0.1)
        return [optimizer], [LambdaLR(optimizer, lambda step: step / self.trainer.estimated_stepping_batches)]


class Named(LitClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step((batch["image"], batch["label"]), batch_idx)


class Three(LitClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y, _weight = batch
        return super().training_step((x, y), batch_idx)


class Summed(LitClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("train_samples", len(batch[1]), reduce_fx="sum")
        return super().training_step(batch, batch_idx)


class OwnStep(LitClassifier):
    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""


class Curvature(LitClassifier):
    def configure_optimizers(self) -> Any:
        return LBFGS(self.parameters())


class Words(LitClassifier):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_note", "good")


class EachClass(LitClassifier):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.each.update(self(batch[0]), batch[1])
        self.log("test_acc", self.each)

    def setup(self, stage: str) -> None:
        self.each = MulticlassAccuracy(3, average=None)


class Loose(LitClassifier):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.kept["acc"].update(self(batch[0]), batch[1])
        self.log("test_acc", self.kept["acc"])

    def setup(self, stage: str) -> None:
        self.kept = {"acc": MulticlassAccuracy(3)}


class Lazy(LitClassifier):
    def configure_model(self) -> None:
        self.classifier = nn.LazyLinear(3)  # type: ignore[assignment]


class Mixed(LitClassifier):
    def configure_model(self) -> None:
        self.classifier.double()


class Writer(LitClassifier):
    def on_train_epoch_end(self) -> None:
        self.logger.experiment.add_scalar("loss", 0.0)  # type: ignore[union-attr]


class Spread(LitClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(**batch), batch["labels"])


class BrokenGradient(LitClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self(batch[0]).exp()
        loss = F.cross_entropy(scores, batch[1])
        scores.add_(1)
        return loss


class BrokenHook(LitClassifier):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log("epochs", self.trainer.max_epochs)


REFUSED: dict[type[LitClassifier], str] = {
    Spread: "task: Spread.training_step fails on a batch of 4 samples: TypeError: argument after ** must be a mapping, "
    "not tuple; a batch is a pair (inputs, targets)",
    BrokenGradient: "task: BrokenGradient.training_step fails on a batch of 4 samples: RuntimeError: one of the",
    BrokenHook: f"task: BrokenHook uses self.trainer.max_epochs, {NO_TRAINER}give the number as an argument of the",
    Manual: "task: Manual uses manual optimization; return the loss from training_step instead",
    OwnOptimizers: f"task: OwnOptimizers uses self.trainer.strategy, {NO_TRAINER}leave out self.optimizers(), ",
    Two: "task: Two.configure_optimizers returns 2 optimizers; return one",
    Plateau: "task: Plateau uses ReduceLROnPlateau, which has no metric to watch within a visit; use another",
    AllSteps: f"task: AllSteps uses self.trainer.estimated_stepping_batches, {NO_TRAINER}give the number as an ",
    Named: "task: Named.training_step fails on a batch of 4 samples: TypeError: tuple indices must be integers or "
    "slices, not str; a batch is a pair (inputs, targets)",
    Three: "task: Three.training_step fails on a batch of 4 samples: ValueError: not enough values to unpack (expected "
    "3, got 2); a batch is a pair (inputs, targets)",
    Summed: "task: Summed logs train_samples with reduce_fx='sum'; only mean is supported",
    Curvature: "task: Curvature uses LBFGS, which computes the loss several times in a step; use another one",
    Words: "task: Words logs str as note; log a number or a metric",
    EachClass: "task: the metric acc has several values; log one number, e.g. with average='macro'",
    Loose: "task: Loose logs the metric acc, which is no attribute of the module; set it in __init__, and use nn.Mod",
    Lazy: "task: module.classifier.weight belongs to a lazy layer, which has no size yet; give the layer its size",
    Mixed: "task: module.classifier.weight is torch.float64; all parameters and float buffers must be torch.float32",
    Writer: "task: Writer.on_train_epoch_end fails on a batch of 4 samples: AttributeError: 'NoneType' object has no "
    "attribute 'experiment'; self.logger is None; log numbers with self.log",
    OwnStep: "task: OwnStep.optimizer_step is not supported in a federation; use on_before_optimizer_step",
}


def make_loop(module: Any, **config: Any) -> Any:
    return lit_loop(Fabric(accelerator="cpu", devices=1), module, FedAvg(), ToyData(), **config)


@pytest.mark.parametrize("module", REFUSED, ids=lambda module: module.__name__)
def test_what_cannot_work_is_refused_with_one_line(module):
    with pytest.raises(ConfigError) as caught:
        make_loop(module)
    assert str(caught.value).startswith(REFUSED[module])
    assert "\n" not in str(caught.value)


def test_data_of_lightning_is_refused_with_advice():
    with pytest.raises(ConfigError, match="data: LightningDataModule does not say who has which samples; FromDataset"):
        fit(FedAvg, LitClassifier, LightningDataModule())  # type: ignore[arg-type]


class Usual(LitClassifier):
    """Clips with Lightning's function, prints, and logs the learning rate that each step uses."""

    interval = "step"

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="norm")
        total = nn.utils.get_total_norm([p.grad for p in self.parameters() if p.grad is not None])
        self.norm = max(float(total), getattr(self, "norm", 0.0))
        self.rate = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log_dict({"norm": getattr(self, "norm", 0.0), f"rate{self.current_epoch}": getattr(self, "rate", 0.0)})

    def on_train_epoch_end(self) -> None:
        if self.trainer.is_global_zero and self.global_rank == 0:
            self.print(f"epoch {self.current_epoch}")

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=1.0)
        schedule = LambdaLR(optimizer, lambda count: 0.1**count)
        return ({"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": self.interval}},)


class UsualEpochs(Usual):
    interval = "epoch"


@pytest.mark.parametrize(("module", "second"), [(Usual, 0.1), (UsualEpochs, 1.0)])
def test_the_usual_helpers_work(module, second, capsys):
    loop = make_loop(module, local_epochs=1, participation=0.15, batch_size=13)
    (client,) = loop._cohort(1)
    samples = loop.data.train_sizes[client].item()
    scalars = loop.round().scalars
    assert scalars["train_norm"] == pytest.approx(0.01, rel=1e-3)
    assert scalars["train_rate0"] == pytest.approx((13 + second * (samples - 13)) / samples)
    assert "epoch 0" in capsys.readouterr().out


class OneElement(LitClassifier):
    """Returns its loss as a vector of one element."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx).reshape(1)


class FromTemplate(LitClassifier):
    """Finds its parameters as a widespread template for Lightning does."""

    def configure_optimizers(self) -> Any:
        assert self.trainer.lightning_module is self
        return SGD(self.trainer.model.parameters(), lr=0.1)


class Direct(LitClassifier):
    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(("module", "like"), [(OneElement, LitClassifier), (FromTemplate, Direct)])
def test_other_ways_to_write_the_same_give_the_same(module, like):
    assert make_loop(module).fit()["model_sha256"] == make_loop(like).fit()["model_sha256"]


class Constant(LitClassifier):
    """A correlation that is undefined, because one of its sides is constant."""

    def setup(self, stage: str) -> None:
        self.correlation = PearsonCorrCoef()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        super().test_step(batch, batch_idx)
        self.correlation.update(torch.zeros(len(batch[1])), batch[1].float())
        self.log("test_correlation", self.correlation)


def test_a_metric_that_is_undefined_is_nan_and_no_divergence():
    usual, constant = (make_loop(module).fit() for module in (LitClassifier, Constant))
    assert constant["model_sha256"] == usual["model_sha256"]
    assert constant["last"]["all_acc_before"] == usual["last"]["all_acc_before"]
    assert math.isnan(constant["last"]["all_correlation_before"])
