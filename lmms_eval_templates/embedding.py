"""The second step of answer matching: which choice a text is closest to in meaning (paper section 3.1)."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from .sets import TemplateError


class Embedder:
    """A sentence-transformers model that embeds each text once.

    It runs on the CPU: the model under test has the accelerator, and the same text gets the same vector everywhere.

    Raises:
        TemplateError: the model cannot be loaded or gives no usable vector.
    """

    def __init__(self, name: str):
        self.name = name
        self._vectors: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()  # lmms-eval scores documents in several threads
        try:
            from sentence_transformers import SentenceTransformer

            self._model = SentenceTransformer(os.path.expanduser(name), device="cpu")
            similarities = self.similarities("a dog", ["dog", "house"])
        except Exception as error:  # whatever goes wrong here, the user's choices are the same
            raise TemplateError(
                f"TM_EMBEDDER={name!r}: cannot load this model ({type(error).__name__}: {error}). "
                "Set TM_EMBEDDER to a model that is in the cache or can be downloaded, to a folder that holds one, "
                "or to none, which scores answers that no string matches as wrong."
            ) from error
        if not np.isfinite(similarities).all():
            raise TemplateError(f"TM_EMBEDDER={name!r}: the model gives vectors that are not finite")

    def similarities(self, text: str, choices: Sequence[str]) -> np.ndarray:
        """Cosine similarity of `text` to each choice, shape [len(choices)]."""
        with self._lock:
            new = [t for t in dict.fromkeys([text, *choices]) if t not in self._vectors]
            if new:
                vectors = self._model.encode(new, normalize_embeddings=True, show_progress_bar=False)
                self._vectors.update(zip(new, np.asarray(vectors, dtype=np.float64), strict=True))
            return np.stack([self._vectors[c] for c in choices]) @ self._vectors[text]

    def nearest(self, text: str, choices: Sequence[str]) -> int:
        """Index of the most similar choice, the first one where several are."""
        # Rounding hides the last bits, in which machines differ.
        return int(np.argmax(np.round(self.similarities(text, choices), 6)))


@lru_cache(maxsize=1)
def load_embedder(name: str) -> Embedder | None:
    """The embedder of that name, loaded once a process; None for "none"."""
    return None if name == "none" else Embedder(name)
