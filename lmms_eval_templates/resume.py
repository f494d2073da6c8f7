"""Makes lmms-eval's --use_cache pick up what a killed run had finished.

lmms-eval 0.7.3 writes each answer to a log of the run as soon as it has it, but reads only logs of runs that came to
their end. A run that was killed would start again from nothing.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any


def teach_response_cache(model_ids: set[str]) -> None:
    """Lets the caches of these models begin with the answers of unfinished runs below the same cache folder."""
    from lmms_eval.caching.response_cache import ResponseCache

    if hasattr(ResponseCache, "_template_matters"):
        return
    create = ResponseCache.create

    @functools.wraps(create)
    def create_and_adopt(cache_root: str, **options: Any) -> Any:
        cache = create(cache_root, **options)
        if options.get("model") in model_ids:
            _adopt(cache)
        return cache

    ResponseCache.create = create_and_adopt
    ResponseCache._template_matters = True


def _adopt(cache: Any) -> None:
    """Keys hold task, document, settings and model: what another run answered is found only where it is the answer."""
    own = Path(cache.audit_path)
    for log in sorted(own.parent.parent.glob("*/rank_*.audit.jsonl")):
        if log != own and not (log.parent / ".merged").exists():
            cache.audit_path = str(log)
            cache._replay_audit_log()
    cache.audit_path = str(own)
