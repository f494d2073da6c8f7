"""Whether the words around a mention deny it ("it is not B") or affirm it ("B is correct")."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .mentions import CROSSES, MARK, TICKS, Mention

_WINDOW = 100  # characters around a mention that are looked at

# Between the members of a list within one clause, which share its negation.
_GLUE = r"[\s,/)\]}\"'(\[]*(?:(?:or|and|nor|&|oder|ou|或者?|和|option|choice|an|a|the)[\s,/(\"'\[]+)*"
_NEGATOR = re.compile(
    r"\b(?:not|never|cannot|no|nor|neither|without|except|unlike|besides|hardly|doubt\w*|rather than|instead of"
    r"|other than|over|less likely|unlikely|least likely|incorrect|wrong|false|exclude\w*|excluding|eliminat\w+"
    r"|rul(?:e|es|ed|ing) out|none of|nicht|kein\w*|pas|ni)\b|n't\b|不|并非|非|排除|没有|沒有",
    re.I | re.A,
)
_BREAK = re.compile(
    r"[.;!?\n](?=\s|\Z)|而是|所以|因此"
    r"|\b(?:but|however|so|therefore|thus|hence|because|since|instead(?! of)|rather(?! than)|sondern|mais)\b",
    re.I | re.A,
)
_DENIES_NOTHING = re.compile(
    r"\bnot only\b|\bno doubt\b|\bwithout (?:a )?doubt\b|\bno question\b|\bnone other than\b", re.I
)
_ALL_BUT = re.compile(r"\b(?:anything|all|everything|any) but\b", re.I)
_DENIED_AFTER = re.compile(
    r"[)\]}>\"' ]*(?:\([^)]*\)\s*)?(?:[:-]\s*)?"
    r"(?:(?:(?!option|choice)[a-z]{2,}\s+){0,2}?"
    r"(?:is|are|was|were|can|could|would|does|do|seems?|looks?|appears)\s*"
    r"(?:(?:also|clearly|probably|definitely|obviously|certainly|highly|very)\s+)?"
    r"(?:not\b|n't|never|incorrect|wrong|false|unlikely|be (?:ruled|eliminated|excluded)|ruled out|eliminated|excluded"
    r"|out\b|less)"
    r"|(?:isn|aren|wasn|can|doesn|won)'t\b|cannot\b|(?:incorrect|wrong|false)\b|\?\s*(?:no|nope|not)\b"
    r"|(?:是)?(?:错|錯|不正确|不对|不是))",
    re.I | re.A,
)
_AFFIRMED_AFTER = re.compile(
    r"[)\]}>\"']*\s*(?:because|since)\b"
    r"|[)\]}>\"'\s.:]*(?:\w+\s+){0,3}?(?:is|seems|looks|appears|would be|must be|should be)\s+"
    r"(?:to be\s+)?(?:clearly\s+|definitely\s+)?(?:the\s+)?(?:only\s+)?(?:most\s+likely\s+)?(?:one\s+that\s+is\s+)?"
    r"(?:correct|right|best|better|answer|true|accurate|most\s+\w+)\b"
    r"|[)\]}>\"'\s]*(?:选项|選項)?(?:是|为)?(?:正确|正確|对的|最合适|最符合)",
    re.I | re.A,
)


def is_denied(text: str, mention: Mention, mentions: Sequence[Mention]) -> bool:
    """Whether the clause around a mention says that it is not the answer."""
    if text[mention.start : mention.end].strip("\"'(*").lower() in ("yes", "no"):
        return bool(re.search(r"\bnot\s+\Z", text[: mention.start], re.I))  # "No, it isn't" denies nothing
    if mark := MARK.search(text[: mention.start]):
        return mark[1] in CROSSES
    start = max(0, mention.start - _WINDOW)
    before = text[start : mention.start]
    for other in reversed(mentions):  # earlier mentions as one sign, so that a list shares its negation
        if start <= other.start < mention.start:
            before = before[: other.start - start] + "\0" + before[min(len(before), other.end - start) :]
    before = re.sub(rf"\0{_GLUE}(?=\0|\Z)", "", before, flags=re.I)
    before = _ALL_BUT.sub("except", _DENIES_NOTHING.sub(" ", before))
    breaks = list(_BREAK.finditer(before))
    clause = before[breaks[-1].end() :] if breaks else before
    clause = clause.rsplit(",", 1)[-1]
    if _NEGATOR.search(clause):
        return True
    return bool(_DENIED_AFTER.match(text[mention.end : mention.end + _WINDOW]))


def is_affirmed(text: str, mention: Mention) -> bool:
    """Whether what follows a mention, or a tick before it, says that it is the answer."""
    mark = MARK.search(text[: mention.start])
    if mark and mark[1] in TICKS:
        return True
    return bool(_AFFIRMED_AFTER.match(text[mention.end : mention.end + _WINDOW]))
