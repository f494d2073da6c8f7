"""The entry point through which lmms-eval finds our tasks and models.

lmms-eval 0.7.3 has no entry point for tasks, but loads every `lmms_eval.models` entry point when it starts to evaluate.
Ours registers the model classes, and teaches `TaskManager` three things: our task folder, our YAML keys, and to check
YAML and TM_* settings when a task is selected, which is before any model loads.
"""

from __future__ import annotations

import functools
import warnings
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmms_eval.models.registry_v2 import ModelManifest

MODELS = {
    "tm_replay": "lmms_eval_templates.models.replay.Replay",
    "tm_hf": "lmms_eval_templates.models.hf.SharedPrefixHF",
}
# These are given whole conversations; the others, in lmms-eval's words simple models, a text and images.
CHAT_MODELS = {"tm_hf"}


def tasks_path() -> Path:
    """The folder of our task YAMLs."""
    try:
        return Path(str(resources.files("lmms_eval_templates.tasks")))
    except ModuleNotFoundError:  # `python -m` in a checkout imports the folder beside task_configs/
        raise SystemExit(
            "lmms-eval-templates: error: Python imports the package from this checkout, where its tasks are not beside "
            "it; run the command in another folder, or install with pip install -e ."
        ) from None


def register() -> list[ModelManifest]:
    """Called by lmms-eval: adds our tasks to its search path, returns our models."""
    from lmms_eval.models.registry_v2 import ModelManifest

    from .resume import teach_response_cache

    try:
        _teach_task_manager()
    except (ImportError, AttributeError) as error:
        warnings.warn(
            f"lmms-eval-templates cannot add its tasks to this version of lmms-eval ({type(error).__name__}: {error}); "
            "tasks named *_tm_* are not available. It is known to work with lmms-eval 0.7.3.",
            stacklevel=2,
        )
    try:
        teach_response_cache(set(MODELS))
    except (ImportError, AttributeError) as error:
        warnings.warn(
            f"lmms-eval-templates does not know the --use_cache of this version of lmms-eval ({type(error).__name__}: "
            f"{error}); a run that was killed starts again from nothing.",
            stacklevel=2,
        )
    kinds = {name: "chat_class_path" if name in CHAT_MODELS else "simple_class_path" for name in MODELS}
    return [ModelManifest(model_id=name, **{kinds[name]: path}) for name, path in MODELS.items()]


def _teach_task_manager() -> None:
    from lmms_eval.tasks import TaskManager

    from .binding import bind, final_errors, is_ours

    if hasattr(TaskManager, "_template_matters"):
        return
    initialize_tasks, match_tasks = TaskManager.initialize_tasks, TaskManager.match_tasks
    get_config, load_config = TaskManager._get_config, TaskManager.load_config

    @functools.wraps(initialize_tasks)
    def initialize_with_ours(self: Any, include_path: Any = None, include_defaults: bool = True) -> dict:
        paths = [include_path] if isinstance(include_path, str) else list(include_path or [])
        return initialize_tasks(self, [*paths, str(tasks_path())], include_defaults)

    @functools.wraps(match_tasks)
    def match_and_check(self: Any, task_list: list[str]) -> list[str]:
        names = match_tasks(self, task_list)
        for task in [task for name in names for task in _our_tasks(self, name)]:
            self._get_config(task)  # refuses a faulty YAML, setting or embedder
        return names

    @functools.wraps(get_config)
    def get_bound_config(self: Any, name: str) -> dict:
        config = get_config(self, name)
        if not is_ours(config):
            return config
        return final_errors(bind)(config, Path(self.task_index[name]["yaml_path"]).parent)

    @functools.wraps(load_config)
    def load_bound_config(self: Any, config: dict) -> dict:  # --tasks FILE or FOLDER
        return load_config(self, final_errors(bind)(config, Path()) if is_ours(config) else config)

    TaskManager.initialize_tasks = initialize_with_ours
    TaskManager.match_tasks = match_and_check
    TaskManager._get_config = get_bound_config
    TaskManager.load_config = load_bound_config
    TaskManager._template_matters = True


def _our_tasks(manager: Any, name: str) -> list[str]:
    """The tasks of ours among a task, or the members of a group or tag."""
    from lmms_eval.utils import load_yaml_config

    from .binding import is_ours

    entry = manager.task_index.get(name)
    if entry is None:  # a group may hold whole configs
        return []
    config = {"task": entry["task"]} if entry["type"] == "tag" else load_yaml_config(entry["yaml_path"], mode="simple")
    if entry["type"] in ("group", "tag"):
        members = [
            member["task"] if isinstance(member, dict) and "task" in member else member for member in config["task"]
        ]
        return [task for member in members if isinstance(member, str) for task in _our_tasks(manager, member)]
    return [name] if is_ours(config) else []
