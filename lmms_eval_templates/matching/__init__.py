"""From a model's free text to one of the choices (paper section 3.1), by strings alone.

The paper's rule is exact: "B", "(B)", "dog" or "(B) dog". Models rarely answer so tersely, and what exact strings miss
goes to sentence embeddings, which compare "The answer is (B)." with "cat" and "dog" by meaning. So this package reads
the ways in which models really answer, and says None when the text names no choice, or more than one.

`reply` takes the answer out of reasoning, tags and markup; `text` brings spellings and numbers to one form; `mentions`
finds where choices stand, `polarity` whether they are denied there; `decision` decides.
"""

from .decision import NO_MATCH, Match, match_answer
from .mentions import LETTERS

__all__ = ["LETTERS", "NO_MATCH", "Match", "match_answer"]
