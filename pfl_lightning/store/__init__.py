"""Client states between visits: in RAM up to a bound, the rest on disk, each on one rank."""

from pfl_lightning.store.client_store import ClientStore
from pfl_lightning.store.config import StoreConfig

__all__ = ["ClientStore", "StoreConfig"]
