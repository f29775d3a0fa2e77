"""The nets of the papers. Each takes a `DataSpec` as its first argument and has a `body` and a `head`."""

from pfl_lightning.nets.cnn import CNN, LeNet, SmallCNN
from pfl_lightning.nets.lstm import LSTM
from pfl_lightning.nets.mlp import MLP
from pfl_lightning.nets.net import Net
from pfl_lightning.nets.powers import Powers
from pfl_lightning.nets.resnet import ResNet8, ResNet10, ResNet18
from pfl_lightning.nets.resnet9 import ResNet9

__all__ = ["CNN", "LSTM", "MLP", "LeNet", "Net", "Powers", "ResNet8", "ResNet9", "ResNet10", "ResNet18", "SmallCNN"]
