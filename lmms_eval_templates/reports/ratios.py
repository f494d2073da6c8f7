"""The template-to-data ratio that a model was trained with (paper section 4.3)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..sets import TemplateError
from .summary import Summary

MANIFEST, MANIFEST_KEY = "training_manifest.json", "template_to_data_ratio"


class Ratio(NamedTuple):
    """Templates a training record; 0 is a model trained without templates.

    Attributes:
        value: the ratio.
        series: models that are drawn as one line, such as "7B"; "" for all.
    """

    value: float
    series: str


def read_ratios(summary: Summary, pairs: Sequence[str]) -> dict[str, Ratio]:
    """The ratios of a report's models.

    Args:
        summary: the report.
        pairs: "MODEL=RATIO" or "MODEL=RATIO,SERIES". A model that is not named takes the value from the file
            training_manifest.json in its checkpoint's folder, where there is one.

    Raises:
        TemplateError: a model is not in the report, or its ratio is no number.
    """
    ratios = {}
    for model in summary.models:
        run = next(iter(summary.runs[model].values()))
        manifest = Path(run.header.checkpoint) / MANIFEST
        if run.header.checkpoint and manifest.is_file():
            ratios[model] = Ratio(_manifest_ratio(manifest), "")
    for pair in pairs:
        model, _, rest = pair.rpartition("=")
        value, _, series = rest.partition(",")
        if model not in summary.models:
            raise TemplateError(
                f"--ratio {pair}: no model {model!r} in these logs; write MODEL=RATIO with one of "
                f"{', '.join(summary.models)}"
            )
        ratios[model] = Ratio(_number(value, f"--ratio {pair}"), series)
    return ratios


def _manifest_ratio(path: Path) -> float:
    try:
        value = json.loads(path.read_text("utf-8"))[MANIFEST_KEY]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TemplateError(f"{path}: holds no {MANIFEST_KEY} ({error!r}); mend it, or give --ratio") from error
    return _number(value, f"{path}, {MANIFEST_KEY}")


def _number(value: object, where: str) -> float:
    try:
        ratio = float(str(value))
    except ValueError:
        ratio = math.nan
    if not 0 <= ratio < math.inf:
        raise TemplateError(f"{where}: {value!r} is no ratio; allowed is a number of 0 or more, such as 7.5e-3")
    return ratio
