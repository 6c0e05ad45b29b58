"""Tasks: data, the model head they need, and the metric. One task a class, found by name (``glue/sst2``)."""

from ..core.registry import TASKS
from .base import Task, load_task
from .batching import Batch
from .encoding import Example, Row

__all__ = ["TASKS", "Batch", "Example", "Row", "Task", "load_task"]
