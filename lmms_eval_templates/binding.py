"""Binds a task's declarative YAML to the functions that lmms-eval calls.

A task YAML of ours has two keys that lmms-eval does not know: `template_set`, and `template_fields` (see
`fields.FieldsAdapter`). `bind` takes them out and puts in what the host needs, so that no benchmark needs Python code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from loguru import logger  # lmms-eval's logger, so that warnings stand where its own do

from .embedding import load_embedder
from .fields import FieldsAdapter
from .matching import LETTERS, Match, match_answer
from .metrics import METRICS, RECORD_METRIC, Cell, all_metrics, build_matrix
from .sets import TemplateError, fill, template_set
from .settings import Settings
from .signature import Signature, installed_versions
from .space import VQA

FIELDS_KEY, SET_KEY = "template_fields", "template_set"
_OPTIONAL_KEYS = ("splits", "paper_subset")
# Answers are a letter or a few words; a model that explains itself gets to its answer within this.
_GENERATION = {"max_new_tokens": 64, "do_sample": False, "temperature": 0, "num_beams": 1, "until": []}


def is_ours(config: Mapping[str, Any]) -> bool:
    """Whether a task's YAML is to be bound."""
    return FIELDS_KEY in config


def bind(config: Mapping[str, Any]) -> dict[str, Any]:
    """The task's config as lmms-eval wants it.

    Raises:
        TemplateError: the YAML or the TM_* environment is faulty.
    """
    config = dict(config)
    task = config["task"]
    settings = Settings.from_environment()
    adapter = FieldsAdapter.from_mapping(config.pop(FIELDS_KEY), task)
    if SET_KEY not in config:
        raise TemplateError(f"task {task}: {SET_KEY} is missing; name a shipped set or a file")
    templates = template_set(config.pop(SET_KEY))
    templates = settings.templates or templates
    all_splits, paper_subset = (config.pop(key, None) for key in _OPTIONAL_KEYS)
    if settings.subset == "paper":
        if not paper_subset:
            raise TemplateError(f"task {task}: TM_SUBSET=paper, but the paper has no subset of this benchmark")
        config.update(dataset_path=paper_subset, dataset_name=None, dataset_kwargs=None, test_split="eval")
        adapter = replace(adapter, category=None, keep={})  # its rows are chosen already
    metadata = {"version": 1.0, **(config.get("metadata") or {}), "templates": list(templates.templates)}

    def process_docs(dataset: Any) -> Any:
        import datasets

        from .variation import expand, items_hash, join_splits, read_items, stratified_sample

        if all_splits and settings.subset != "paper":
            kwargs = config.get("dataset_kwargs") or {}
            dataset = join_splits(datasets.load_dataset(config["dataset_path"], config.get("dataset_name"), **kwargs))
        items = stratified_sample(read_items(dataset, adapter, task), settings.items, settings.seed)
        metadata["signature"] = str(
            Signature(
                templates=templates.name,
                templates_hash=templates.hash[:12],
                space_hash=VQA.hash[:12],
                items=len(items),
                items_hash=items_hash(items)[:12],
                subset=settings.subset,
                seed=settings.seed,
                match=settings.match,
                embedder=settings.embedder,
                **installed_versions(),
            )
        )
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if world_size > 1:  # `expand` orders by it, and --use_cache, which counts rows, hashes this dict into its keys
            metadata["world_size"] = world_size
        return expand(dataset, adapter, items, templates, world_size)

    def doc_to_visual(doc: Mapping[str, Any]) -> list:
        return [doc["image"].convert("RGB")]

    def doc_to_text(doc: Mapping[str, Any]) -> str:
        from .variation import render_choices

        return fill(templates.templates[doc["template"]], doc["question"], render_choices(doc["choices"]))

    def doc_to_target(doc: Mapping[str, Any]) -> str:
        return LETTERS[doc["answer"]]

    def process_results(doc: Mapping[str, Any], results: list[str]) -> dict[str, dict | None]:
        match = decide(results[0], doc["choices"], settings)
        cell = Cell(doc["item_id"], doc["template"], doc["answer"], match.choice, match.step)
        # One record a sample, under the first metric; repeating it under each would double the logs.
        return {**dict.fromkeys(METRICS), RECORD_METRIC: cell.record()}

    report = _Report(task, len(templates), settings.seed)
    return {
        "output_type": "generate_until",
        **config,
        "generation_kwargs": {**_GENERATION, **(config.get("generation_kwargs") or {})},
        "metadata": metadata,
        "process_docs": _at_the_border(process_docs),
        "doc_to_visual": doc_to_visual,
        "doc_to_text": doc_to_text,
        "doc_to_target": doc_to_target,
        "process_results": process_results,
        "metric_list": [
            {"metric": name, "aggregation": report.of(name), "higher_is_better": better}
            for name, better in METRICS.items()
        ],
    }


def decide(response: str, choices: list[str], settings: Settings) -> Match:
    """The two steps of answer matching: strings, then what they leave open by sentence embeddings."""
    match = match_answer(response, choices, strict=settings.match == "strict")
    if match.choice is not None or not response.strip():
        return match
    embedder = load_embedder(settings.embedder)
    return match if embedder is None else Match(embedder.nearest(response.strip(), choices), "embedding")


class _Report:
    """All metrics of a task, computed from the records when lmms-eval asks for the metric that they stand under.

    lmms-eval asks for the metrics one by one, that one first: it is the first key of each sample's results, and the
    first in alphabetical order, which is how keys come out of a gather over ranks.
    """

    def __init__(self, task: str, num_templates: int, seed: int):
        self.task, self.num_templates, self.seed = task, num_templates, seed
        self._values: dict[str, float] = {}

    def of(self, name: str) -> Callable[[list], float]:
        def aggregate(records: list) -> float:
            if name == RECORD_METRIC:
                self._values = self._compute([Cell.from_record(record) for record in records])
            return self._values[name]

        return aggregate

    def _compute(self, cells: list[Cell]) -> dict[str, float]:
        matrix = build_matrix(cells, self.num_templates)
        if matrix.left_out:
            logger.warning(
                f"{self.task}: {len(matrix.left_out)} of {len(matrix.left_out) + len(matrix.items)} items were not "
                f"asked with all {self.num_templates} templates and are left out of every metric: "
                f"{', '.join(matrix.left_out[:5])}{', ...' if len(matrix.left_out) > 5 else ''}. "
                f"A --limit that is a multiple of {self.num_templates} cuts whole items."
            )
        values = all_metrics(matrix, self.seed)
        if values["tm_unmatched"] == 100:
            logger.warning(f"{self.task}: no response named a choice; read the sample logs before using any figure")
        return values


def _at_the_border(function: Callable) -> Callable:
    """lmms-eval tries a failing download five times; an error of the user's is final and shown once."""

    def final(*args: Any) -> Any:
        try:
            return function(*args)
        except TemplateError as error:
            raise SystemExit(f"lmms-eval-templates: error: {error}") from None

    return final
