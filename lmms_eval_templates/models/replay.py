"""`tm_replay`: answers from a file, for scoring again without generating again, and for testing a set-up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from lmms_eval.api.instance import Instance
from lmms_eval.api.model import lmms
from loguru import logger

from ..metrics import RECORD_METRIC, Cell


class Replay(lmms):
    """Gives the responses that a run with `--log_samples` recorded, by task, item and template.

    Args:
        samples: the folder of one model's logs (the newest `*_samples_TASK.jsonl` below it is read), or one such file.

    Example:
        TM_MATCH=strict lmms-eval --model tm_replay --model_args samples=logs/MODEL --tasks blink_tm_complex
    """

    def __init__(self, samples: str, batch_size: int | str = 1, device: str | None = None, **unknown: object):
        super().__init__()
        self.device = torch.device("cpu")
        unknown.pop("max_batch_size", None)  # lmms-eval always passes it
        if unknown:
            raise SystemExit(f"tm_replay: unknown model_args {', '.join(unknown)}; known is samples")
        self._samples = Path(samples)
        if not self._samples.exists():
            raise SystemExit(f"tm_replay: samples={samples}: no such folder or file")

    def _log_of(self, task: str) -> Path:
        if self._samples.is_file():
            return self._samples
        logs = sorted(self._samples.rglob(f"*_samples_{task}.jsonl"), key=lambda log: log.name)
        if not logs:
            raise SystemExit(
                f"tm_replay: no *_samples_{task}.jsonl below {self._samples}; was it run with --log_samples?"
            )
        folders = sorted({str(log.parent) for log in logs})
        if len(folders) > 1:
            raise SystemExit(f"tm_replay: logs of {task} lie in {', '.join(folders)}; name one of these as samples")
        return logs[-1]

    def _recorded(self, task: str) -> dict[tuple[str, int], tuple[str, str | None]]:
        """Response and prompt of each item and template."""
        path = self._log_of(task)
        logger.info(f"tm_replay: {task} from {path}")
        recorded = {}
        for number, line in enumerate(path.read_text("utf-8").split("\n"), start=1):
            if not line.strip():
                continue
            try:
                sample = json.loads(line)
                response = sample.get("resps", sample.get("filtered_resps"))
                while isinstance(response, list):
                    (response,) = response
                cell = Cell.from_record(sample[RECORD_METRIC])
                recorded[cell.item, cell.template] = str(response), sample.get("input")
            except (ValueError, KeyError, TypeError) as error:
                raise SystemExit(f"tm_replay: {path}, line {number}: no sample of our tasks ({error!r})") from None
        return recorded

    def generate_until(self, requests: list[Instance]) -> list[str]:
        recorded: dict[str, dict] = {}
        documents: dict[str, Any] = {}
        responses = []
        for request in requests:
            prompt, *_, doc_id, task, split = request.args
            if task not in recorded:
                recorded[task] = self._recorded(task)
                documents[task] = self.task_dict[task][split].select_columns(["item_id", "template"])
            doc = documents[task][doc_id]
            where = f"item {doc['item_id']!r} with template {doc['template']} of {task}"
            response, asked = recorded[task].get((doc["item_id"], doc["template"]), (None, None))
            if response is None:
                raise SystemExit(f"tm_replay: no response to {where}")
            if asked is not None and asked != prompt:
                raise SystemExit(f"tm_replay: {where} was recorded with another prompt: {asked!r}, not {prompt!r}")
            responses.append(response)
        return responses

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise SystemExit("tm_replay gives responses, no likelihoods")

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        raise SystemExit("tm_replay gives one response an item and template")
