"""Where a text mentions choices, by letter or by content."""

from __future__ import annotations

import re
import string
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise

from .text import without_article

LETTERS = string.ascii_uppercase
TICKS, CROSSES = "✅✔✓☑", "❌✗✘✖"
# At the start of a line; behind an item, or within a line, a mark may belong to what stands before it.
MARK = re.compile(rf"(?:\A|\n)[^\w\n]{{0,4}}([{TICKS}{CROSSES}])[^\w\n]{{0,4}}\Z")
_MOST_MENTIONS = 80


@dataclass(frozen=True)
class Mention:
    """A choice named in a text.

    Attributes:
        start, end: where it stands.
        choice: index of the choice.
        step: "identifier", "content", or "both" for an identifier with its content.
    """

    start: int
    end: int
    choice: int
    step: str


_LETTER = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z](?![A-Za-z0-9_])")
_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}
_NOUN = re.compile(
    r"(?:\b(?:options?|choices?|answers?|letters?|points?|pictures?|images?|figures?|panels?|statements?|alternatives?|candidates?|lettre|antwort)"
    r"|opci[oó]n|选项|選項)\s*(?:is\s+)?[\"'(]*\Z",
    re.I | re.A,
)
_LINE_START = re.compile(r"(?:\A|\n)[ ]*(?:[-*] )?\Z")
# Words after which a free letter is an identifier: "it is B", but "vitamin D".
_BEFORE_LETTER = re.compile(
    r"(?:\A|[.!?;:=,>\n\"'()\]&/+-]|[^\x00-\x7f]|\b(?:is|it's|that's|be|are|was|it|or|and|either|neither|nor|both|not|than|between"
    r"|with|say|choose|choosing|pick|select|answer|so|thus|hence|therefore|means|leaving|leaves|actually|no|wait|yes|then|for"
    r"|to|as|only|just|but|correct|user|assistant|think|believe|guess|ist|est|es|lautet|sondern|mais|donc|nicht|pas|la|el|le|all|anything|out|against|mean|meant|maybe|probably|definitely|likely"
    r"|clearly|indeed|certainly|perhaps|possibly|doubt|rather|instead))"
    r"\s*[\"'(]?\Z",
    re.I | re.A,
)
_AFTER_LETTER = re.compile(
    r"\s*(?:[^\x00-\u024f]|(?:is|was|are|because|since|as|would|should|must|seems|looks|appears|has|cannot|can't|isn't|over"
    r"|doesn't|rather|instead|not|sondern|mais)\b|(?:and/or|or|and|nor|oder|ou)\s+(?:maybe\s+|option\s+)?\(?[A-Z]\b)",
    re.I | re.A,
)
_ENDS = re.compile(r"\s*(?:\Z|[.,;:!?)\]}\"'\n]|-\s|because\b|since\b|is\b)", re.I | re.A)
_CUT_OFF = re.compile(r"\b(?:in|of|on)\s+(?:the|this)\s+\w+\s+is\s+\Z", re.I)  # "The vehicle in the image is a"
_PRONOUN = re.compile(r",? +(?:as|am|was|would|should|must|have|can|could|do|did|will)\b", re.I | re.A)


def _is_identifier(text: str, start: int, end: int) -> bool:
    """Whether the single letter at start:end names a choice, rather than being a word or a part of something."""
    letter, before, after = text[start:end], text[max(0, start - 40) : start], text[end : end + 40]
    opening = before.rstrip()[-1:]
    if opening in _BRACKETS and opening and after.lstrip().startswith(_BRACKETS[opening]):
        return True
    if letter == "a" and not after.strip() and _CUT_OFF.search(before):
        return False
    is_word = letter in "AaI" and re.match(r"[ \t]+[\w\"]", after) and not _AFTER_LETTER.match(after)
    if _NOUN.search(before):
        return not is_word
    if (
        _LINE_START.search(before)
        and re.match(r"[).:](?:\s|\Z|\W|[A-Z\d]|[^\x00-\x7f])", after)
        and not re.match(r"\.\w\.", after)
    ):
        return True
    if letter.islower():
        stated = re.search(
            r"(?:\b(?:is|it's|think|choose|pick|select|with|answer|be|so|es|est|ist)|[:=]|\A)\s*\Z", before, re.I | re.A
        )
        affirmed = re.match(r"\s+(?:is (?:the )?(?:correct|right|best|answer)|because\b)", after, re.I | re.A)
        return bool(
            stated
            and (_ENDS.match(after) if letter not in "ai" else affirmed or re.match(r"\s*(?:\Z|[.)](?!\w))", after))
        )
    glued = before[-1:] in ("/", "&", "°", "'", "-", ".") and not before.endswith("...")
    if (before and glued) or re.match(r"[/&°]|'[a-z]|-\w|\.\w", after):
        return False
    if re.search(r"\d ?°? ?\Z", before) and not before.endswith(("\n", ". ")):
        return False
    if is_word or (letter == "I" and _PRONOUN.match(after)):
        return False
    return bool(_BEFORE_LETTER.search(before) or _AFTER_LETTER.match(after))


@lru_cache(maxsize=4096)
def _content_pattern(content: str) -> re.Pattern[str] | None:
    """Finds a content however it is spaced and hyphenated, in singular or plural, at word boundaries."""
    tokens = re.findall(r"(?:(?<![\w)])-)?\d+(?:\.\d+)?(?=\D|\Z)|[^\W\d_]+|\d+|[^\w\s]", without_article(content))
    tokens = [t for t in tokens if t not in list(".,;:!?\"'()[]{}<>-")] or tokens
    if not tokens or (len(tokens) == 1 and re.fullmatch(r"[A-Za-z]", tokens[0])):
        return None  # a content of one letter cannot be told from an identifier
    body = ""
    for i, token in enumerate(tokens):
        if i:
            apart = token.isalpha() and tokens[i - 1].isalpha()
            body += r"(?:[\s\-,:'\"()\[\]]|\.(?!\s))" + ("+" if apart else "*")
        body += re.escape(token)
    if re.fullmatch(r"[A-Za-z]{3,}", tokens[-1]):
        body += r"(?:e?s)?"
    left = right = ""
    if re.match(r"[A-Za-z0-9_-]", tokens[0]):
        left = r"(?<![A-Za-z0-9_])"
        if tokens[0][0].isdigit():
            left = r"(?<![0-9_])(?<![A-Za-z])(?<!\d[.,])(?<!(?<![\w)])-)(?<!\d-)(?<![\d:]:)(?<!\d/)"
    if re.match(r"[A-Za-z0-9_]", tokens[-1][-1]):
        right = r"(?![A-Za-z0-9_])"
        if tokens[-1][-1].isdigit():
            right = r"(?![0-9_])(?!\.\d)(?!,\d{3})(?!:\d)(?!/\d)(?!-\d)(?!(?:st|nd|rd|th|s)\b)"
    return re.compile(left + body + right, re.I)


_ONE = re.compile(
    r"\b(?:only|just|exactly|is|are|be|has|have|had|contains?|shows?|see|holds?|about)\s+one\b(?!\s+of)(?!\s+(?:that|which|who)\b)",
    re.I | re.A,
)
# "No" as an answer, not as in "there is no dog" or "no image was provided".
_NO = re.compile(
    r"\A[\"'(*]*no\b(?!\s+(?:ideas?|images?|pictures?|photos?|information|answers?|options?|clear|way)\b)"
    r"|(?:(?<=[.!?:=/(\"\n,])|(?<=[.!?:=/(\"\n,] )|(?<=\bis )|(?<=\bsay )|(?<=\bor )|(?<=\band )|(?<=\bbe ))no\b"
    r"(?=\s*(?:[.,;:!)\"\n]|\Z|because\b|since\b))",
    re.I | re.A,
)


def find_mentions(text: str, contents: Sequence[str]) -> list[Mention]:
    """Every mention, in order; of overlapping ones the longest, an identifier and its content as one."""
    identifiers = _find_identifiers(text, len(contents))
    named = _find_contents(text, contents)
    if named and any(re.search(r"\b[A-Z]\b", content) for content in contents):
        # "Point A is closer": contents speak of A and B themselves, so that a bare letter is no identifier.
        identifiers = [m for m in identifiers if text[max(0, m.start - 1)] in _BRACKETS]
    found = [
        m
        for m in identifiers + named
        if not re.search(r"(?<!other )\bthan\s+(?:\w+\s+)?\Z", text[max(0, m.start - 20) : m.start])
    ]
    kept: list[Mention] = []
    for mention in sorted(found, key=lambda m: (m.start - m.end, m.step == "identifier", m.start)):
        if not any(mention.start < other.end and other.start < mention.end for other in kept):
            kept.append(mention)
    merged: list[Mention] = []
    for mention in sorted(kept, key=lambda m: m.start):
        previous = merged[-1] if merged else None
        gap = text[previous.end : mention.start] if previous else ""
        if previous and mention.choice == previous.choice and re.fullmatch(r"[)\]}>\"']?[ .:,)(\"'=-]*", gap):
            step = previous.step if mention.step == previous.step else "both"
            merged[-1] = replace(previous, end=mention.end, step=step)
        else:
            merged.append(mention)
    return merged


def _find_identifiers(text: str, num_choices: int) -> list[Mention]:
    found: list[Mention] = []
    for match in _LETTER.finditer(text):
        choice = LETTERS.find(match[0].upper())
        if choice < num_choices and _is_identifier(text, match.start(), match.end()):
            found.append(Mention(match.start(), match.end(), choice, "identifier"))
        if len(found) == _MOST_MENTIONS:
            break
    return found


def _find_contents(text: str, contents: Sequence[str]) -> list[Mention]:
    by_span: dict[tuple[int, int], list[int]] = defaultdict(list)
    for choice, content in enumerate(contents):
        bare = without_article(content).strip(" .").casefold()
        patterns = [_NO] if bare == "no" else [_content_pattern(content)] + [_ONE] * (bare == "1")
        for pattern in filter(None, patterns):
            for match in islice(pattern.finditer(text), _MOST_MENTIONS):
                by_span[match.span()].append(choice)
    found = []
    for (start, end), choices in by_span.items():
        exact = [c for c in choices if contents[c].casefold() == text[start:end].casefold()]
        if len(exact or choices) == 1:  # contents that look the same name none of them
            found.append(Mention(start, end, (exact or choices)[0], "content"))
    return found


SEPARATOR = (
    r"[\s,;/)\]}>.:\"'(\[{<|*-]*"
    r"(?:(?:or|and|nor|&|oder|ou|或者?|和|及|还是|還是|option|choice|maybe|possibly|perhaps|even|an|a|the|(?:[A-Z]|\d+)[.):])[\s,/(\"'\[]*)*"
)


def is_list(text: str, first: Mention, second: Mention) -> bool:
    """Whether nothing but separators stands between two mentions of different choices."""
    gap = text[first.end : second.start]
    if first.choice == second.choice or len(gap) > 40 or not re.fullmatch(SEPARATOR, gap, re.I):
        return False
    # "Dog. The cat ..." begins a sentence about the cat, "dog. cat." is a list.
    if re.search(r"\b(?:or|and)\b|[,/]|[A-Z\d][.)]", gap) or not re.search(r"[.;\n-]", gap):
        return True
    return bool(re.match(r"[)\]]*\.?\s*(?:\Z|\n)" if "\n" in gap else r"[)\]\s]*(?:\Z|\n|[.,;])", text[second.end :]))


def without_echo(text: str, mentions: Sequence[Mention], num_choices: int) -> tuple[int, list[Mention]]:
    """Leaves out a repetition of the whole list of choices, in order.

    Returns:
        Where the last such list ends (0 without one), and the mentions outside of them.
    """
    end, left, i = 0, [], 0
    while i < len(mentions):
        run = list(mentions[i : i + num_choices])
        in_order = [m.choice for m in run] == list(range(num_choices))
        gaps = [text[a.end : b.start] for a, b in pairwise(run)]
        judged = any(MARK.search(text[: m.start]) for m in run)
        if in_order and not judged and all(len(g) < 60 and not re.search(r"[.!?] +[A-Z]\w{2}", g) for g in gaps):
            tight = all(re.fullmatch(SEPARATOR, gap, re.I) for gap in gaps)
            labelled = all(m.step == "both" for m in run)
            if (tight and labelled) or (num_choices > 2 and (tight or labelled)):  # "yes or no" is no echo
                end, i = run[-1].end, i + num_choices
                continue
        left.append(mentions[i])
        i += 1
    return end, left
