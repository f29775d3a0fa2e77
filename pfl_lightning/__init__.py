"""Personalized federated learning on PyTorch Lightning Fabric.

Importing the package is quick: torch and Lightning are imported by the modules that need them.
"""

from importlib.metadata import version

__version__ = version("pfl_lightning")
