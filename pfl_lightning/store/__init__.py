"""Client states between their visits: in memory up to a bound, the rest on disk; and on which rank each one lives."""

from pfl_lightning.store.client_store import ClientStore
from pfl_lightning.store.config import StoreConfig
from pfl_lightning.store.shelf import State

__all__ = ["ClientStore", "State", "StoreConfig"]
