"""The template-to-data ratio that a model was trained with (paper section 4.3)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..sets import TemplateError
from .summary import Summary

_MANIFEST_KEY = "ratio"  # as `lmms-eval-templates augment` writes it


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
        pairs: "MODEL=RATIO" or "MODEL=RATIO,SERIES"; RATIO is a number, or the manifest of the augmented training data.

    Raises:
        TemplateError: a model is not in the report, or its ratio is no number.
    """
    ratios = {}
    for pair in pairs:
        model, _, rest = pair.rpartition("=")
        value, _, series = rest.partition(",")
        if model not in summary.models:
            raise TemplateError(
                f"--ratio {pair}: no model {model!r} in these logs; write MODEL=RATIO with one of "
                f"{', '.join(summary.models)}"
            )
        ratios[model] = Ratio(_read(value, f"--ratio {pair}"), series)
    return ratios


def _read(value: str, where: str) -> float:
    given: object = value
    if Path(value).is_file():
        try:
            given = json.loads(Path(value).read_text("utf-8"))[_MANIFEST_KEY]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TemplateError(f"{where}: {value} holds no {_MANIFEST_KEY!r} ({error!r})") from error
    try:
        ratio = float(str(given))
    except ValueError:
        ratio = math.nan
    if not 0 <= ratio < math.inf:
        raise TemplateError(
            f"{where}: {given!r} is no ratio; allowed is a number of 0 or more, such as 7.5e-3, or the manifest of the "
            "augmented training data"
        )
    return ratio
