"""Binds a task's declarative YAML to the functions that lmms-eval calls.

A task YAML of ours has keys that lmms-eval does not know: `template_set`, `template_fields` (see
`fields.FieldsAdapter`), and optionally `splits` and `paper_subset`. `bind` takes them out and puts in what the host
needs, so that no benchmark needs Python code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loguru import logger  # lmms-eval's logger, so that warnings stand where its own do

from .embedding import load_embedder
from .fields import FieldsAdapter
from .matching import LETTERS, Match, match_answer
from .matching.reply import answer_part
from .metrics import METRICS, RECORD_METRIC, Cell, all_metrics, build_matrix
from .sets import TemplateError, TemplateSet, fill, find_template_set
from .settings import Settings
from .signature import Signature, installed_versions, run_environment
from .space import VQA

FIELDS_KEY, SET_KEY, SPLITS_KEY, SUBSET_KEY = "template_fields", "template_set", "splits", "paper_subset"
# Answers are a letter or a few words; a model that explains itself gets to its answer within this.
_GENERATION = {"max_new_tokens": 64, "do_sample": False, "temperature": 0, "num_beams": 1, "until": []}


def is_ours(config: Mapping[str, Any]) -> bool:
    """Whether a task's YAML is to be bound."""
    return FIELDS_KEY in config


def bind(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The task's config as lmms-eval wants it.

    Args:
        config: the task's YAML, its includes resolved.
        folder: where the YAML stands; a `template_set` that is a file is looked up from there.

    Raises:
        TemplateError: the YAML or the TM_* environment is faulty, or the embedder cannot be loaded. It is loaded here,
            so that it does not fail after hours of generating.
    """
    config = dict(config)
    name = config["task"]
    settings = Settings.from_environment()
    load_embedder(settings.embedder)
    adapter = FieldsAdapter.from_mapping(config.pop(FIELDS_KEY), name)
    if SET_KEY not in config:
        raise TemplateError(f"task {name}: {SET_KEY} is missing; name a shipped set or a file")
    own_set, splits, subset = config.pop(SET_KEY), config.pop(SPLITS_KEY, None), config.pop(SUBSET_KEY, None)
    if splits not in (None, "all"):
        raise TemplateError(f"task {name}: {SPLITS_KEY} is {splits!r}; allowed is all, or leave it out")
    if settings.subset == "paper":
        if not subset:
            raise TemplateError(f"task {name}: TM_SUBSET=paper, but the paper has no subset of this benchmark")
        config.update(dataset_path=subset, dataset_name=None, dataset_kwargs=None, test_split="eval")
        adapter, splits = replace(adapter, category=None, keep={}), None  # its rows are chosen already
    templates = settings.templates or find_template_set(own_set, folder)
    metadata = {"version": 1.0, **(config.get("metadata") or {}), "templates": list(templates.templates)}
    task = _Task(name, adapter, templates, settings, metadata)
    report = _Report(name, len(templates), settings.seed)

    def process_docs(dataset: Any) -> Any:
        if splits:
            dataset = _join_all_splits(config)
        return task.ask(dataset)

    return {
        "output_type": "generate_until",
        **config,
        "generation_kwargs": {**_GENERATION, **(config.get("generation_kwargs") or {})},
        "metadata": metadata,
        "process_docs": final_errors(process_docs),
        "doc_to_visual": lambda doc: [doc["image"].convert("RGB")],
        "doc_to_text": lambda doc: task.prompt(doc),
        "doc_to_target": lambda doc: LETTERS[doc["answer"]],
        "process_results": lambda doc, results: task.score(doc, results[0]),
        "metric_list": [
            {"metric": metric, "aggregation": report.of(metric), "higher_is_better": better}
            for metric, better in METRICS.items()
        ],
    }


@dataclass(frozen=True)
class _Task:
    """What a task's rows, prompts and scores depend on."""

    name: str
    adapter: FieldsAdapter
    templates: TemplateSet
    settings: Settings
    metadata: dict[str, Any]  # stands in the results file

    def ask(self, dataset: Any) -> Any:
        """The dataset of all prompts; signs the metadata."""
        from .variation import expand, items_hash, read_items, stratified_sample

        settings = self.settings
        items = stratified_sample(read_items(dataset, self.adapter, self.name), settings.items, settings.seed)
        self.metadata["signature"] = str(
            Signature(
                templates=self.templates.name,
                templates_hash=self.templates.hash[:12],
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
        self.metadata["environment"] = run_environment()
        if _world_size() > 1:  # `expand` orders by it, and --use_cache, which counts rows, has this dict in its keys
            self.metadata["world_size"] = _world_size()
        return expand(dataset, self.adapter, items, self.templates, _world_size())

    def prompt(self, doc: Mapping[str, Any]) -> str:
        from .variation import render_choices

        template = self.templates.templates[doc["template"]]
        return fill(template, doc["question"], render_choices(doc["choices"]))

    def score(self, doc: Mapping[str, Any], response: str) -> dict[str, dict | None]:
        match = decide(response, doc["choices"], self.settings)
        cell = Cell(doc["item_id"], doc["template"], doc["answer"], match.choice, match.step)
        # One record a sample, under the first metric; repeating it under each would double the logs.
        return {**dict.fromkeys(METRICS), RECORD_METRIC: cell.record()}


def decide(response: str, choices: list[str], settings: Settings) -> Match:
    """The two steps of answer matching: strings, then what they leave open by sentence embeddings.

    A response that holds no word outside of reasoning and special tokens is no answer, whatever it is closest to.
    """
    strict = settings.match == "strict"
    match = match_answer(response, choices, strict)
    text = response.strip() if strict else answer_part(response)
    if match.choice is not None or not re.search(r"\w", text):
        return match
    embedder = load_embedder(settings.embedder)
    return match if embedder is None else Match(embedder.nearest(text, choices), "embedding")


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
            whole = self.num_templates * _world_size()
            logger.warning(
                f"{self.task}: {len(matrix.left_out)} of {len(matrix.left_out) + len(matrix.items)} items were not "
                f"asked with all {self.num_templates} templates and are left out of every metric: "
                f"{', '.join(matrix.left_out[:5])}{', ...' if len(matrix.left_out) > 5 else ''}. "
                f"A --limit that is a multiple of {whole} cuts whole items."
            )
        values = all_metrics(matrix, self.seed)
        if values["tm_unmatched"] == 100:
            logger.warning(f"{self.task}: no response named a choice; read the sample logs before using any figure")
        return values


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _join_all_splits(config: Mapping[str, Any]) -> Any:
    import datasets

    from .variation import join_splits

    kwargs = config.get("dataset_kwargs") or {}
    return join_splits(datasets.load_dataset(config["dataset_path"], config.get("dataset_name"), **kwargs))


def final_errors(function: Callable) -> Callable:
    """Makes an error of the user's end the run with one message; lmms-eval would try again or exit with 0."""

    def guarded(*args: Any) -> Any:
        try:
            return function(*args)
        except TemplateError as error:
            raise SystemExit(f"lmms-eval-templates: error: {error}") from None

    return guarded
