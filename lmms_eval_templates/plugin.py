"""The entry point through which lmms-eval finds our tasks and models.

lmms-eval 0.7.3 has no entry point for tasks, but loads every `lmms_eval.models` entry point when it starts to evaluate.
Ours registers the model classes, and teaches `TaskManager` three things: our task folder, our YAML keys, and to check
TM_* settings when a task is selected, which is before any model loads.
"""

from __future__ import annotations

import functools
import warnings
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .sets import TemplateError

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
    return Path(str(resources.files("lmms_eval_templates.tasks")))


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
    from lmms_eval import utils
    from lmms_eval.tasks import TaskManager

    from .binding import bind, is_ours

    if hasattr(TaskManager, "_template_matters"):
        return
    initialize_tasks, match_tasks, get_config = (
        TaskManager.initialize_tasks,
        TaskManager.match_tasks,
        TaskManager._get_config,
    )

    @functools.wraps(initialize_tasks)
    def initialize_with_ours(self: Any, include_path: Any = None, include_defaults: bool = True) -> dict:
        paths = [include_path] if isinstance(include_path, str) else list(include_path or [])
        return initialize_tasks(self, [*paths, str(tasks_path())], include_defaults)

    @functools.wraps(match_tasks)
    def match_and_check(self: Any, task_list: list[str]) -> list[str]:
        names = match_tasks(self, task_list)
        if any(_selects_ours(self, name, utils.load_yaml_config) for name in names):
            _check_settings()
        return names

    @functools.wraps(get_config)
    def get_bound_config(self: Any, name: str) -> dict:
        config = get_config(self, name)
        if not is_ours(config):
            return config
        try:
            return bind(config)
        except TemplateError as error:
            raise SystemExit(f"lmms-eval-templates: error: {error}") from None

    TaskManager.initialize_tasks = initialize_with_ours
    TaskManager.match_tasks = match_and_check
    TaskManager._get_config = get_bound_config
    TaskManager._template_matters = True


def _selects_ours(manager: Any, name: str, load_yaml_config: Any) -> bool:
    entry = manager.task_index[name]
    if entry["type"] == "tag":
        return any(_selects_ours(manager, task, load_yaml_config) for task in entry["task"])
    config = load_yaml_config(entry["yaml_path"], mode="simple")
    if entry["type"] == "group":
        members = config.get("task") or []
        return any(
            isinstance(m, str) and m in manager.task_index and _selects_ours(manager, m, load_yaml_config)
            for m in members
        )
    from .binding import is_ours

    return is_ours(config)


def _check_settings() -> None:
    """Refuses bad TM_* values, and loads and tries the embedder, before a model is loaded."""
    from .embedding import load_embedder
    from .settings import Settings

    try:
        load_embedder(Settings.from_environment().embedder)
    except TemplateError as error:
        raise SystemExit(f"lmms-eval-templates: error: {error}") from None
