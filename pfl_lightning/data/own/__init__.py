"""Data of the user's own."""

from pfl_lightning.data.own.client_arrays import ClientArrays
from pfl_lightning.data.own.client_folders import ClientFolders
from pfl_lightning.data.own.from_dataset import FromDataset
from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.tables import ImageTable, Table

__all__ = ["ClientArrays", "ClientFolders", "FromDataset", "ImageTable", "OwnData", "Table"]
