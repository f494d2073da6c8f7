"""Which choice a response names: the whole of it, its last statement, its opening, or the one that it mentions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from .mentions import LETTERS, Mention, find_mentions, is_list, without_echo
from .polarity import is_affirmed, is_denied
from .reply import answer_part
from .text import compact, key, names_corner, normalize, singular, spell_corners, without_article, without_markup


class Match(NamedTuple):
    """What a response was taken to mean.

    Attributes:
        choice: position among the choices, or None when strings leave it open.
        step: what decided: "identifier", "content" or "both"; None with choice None.
    """

    choice: int | None
    step: str | None


NO_MATCH = Match(None, None)

_NOUN = r"(?:answer|choice|option|response|solution|selection|conclusion|pick|guess)"
_BE = r"(?:is|was|would be|should be|must be|will be|seems to be|appears to be|could be|has to be)"
# A statement of the answer; what follows is where the answer stands.
_CUE = re.compile(
    rf"""
        \b(?:ans|{_NOUN})(?:\s+(?:to|for|of)\s+(?:the|this|your|that)\s+\w+)?(?:\s+(?:here|below|above|therefore|thus))?
          \s*(?:\b{_BE}\b(?:\s+(?:either|therefore|thus|clearly|definitely|most\s+likely|likely|probably))?|:|=|->|=>)
      | \b(?:(?:correct|right|best|likely)\s+(?:one|letter)|(?:corresponding|matching)\s+(?:one|point|image))\s+{_BE}\b
      | \b(?:i|we|i'd|i'll|let's|would|should|will|must|can)\s+(?:\w+ly\s+)?
          (?:choose|chose|pick|picked|select|selected|go\s+with|opt\s+for|say|answer|conclude|choosing|went\s+with
          |lean\s+towards?)\b(?:\s+(?:that\s+)?it(?:\s+is|'s))?
      | \b(?:leaving|leaves)\b
      | (?:r[eé]ponse|respuesta|risposta|resposta|antwort|soluci[oó]n|opci[oó]n)\s*(?:\w+\s+)?\s*
          (?:es|est|è|é|ist|lautet|:)
      | (?:正确|正確)?的?(?:答案|选项|選項)(?:\]|应该是|应为|应是|是|为|為|选择|选|:)+
      | (?:我|应|應|故|所以|因此)?(?:选择|選擇|选|選)(?!项|項|择|擇)
      | 答えは | 정답은\s*
    """,
    re.I | re.X | re.A,
)
_PLURAL = re.compile(r"(?:options|choices|answers)\s*:\Z|\beach\s+\w+\s*:\Z", re.I)
_WRONG_CUE = re.compile(
    r"(?:\b(?:wrong|incorrect|false|least\s+\w+|worst)\s*|(?:\bnot|n't|\bnever|\bcannot|\bno)\s+(?:\w+\s+){0,2}"
    r"|不能|不应|不應|不)\Z",
    re.I | re.A,
)
_CORRECTION = re.compile(
    r"\b(?:actually|wait|sorry|correction|on second thoughts?|scratch that|hmm|oops|let me correct|i made a mistake)\b"
    r"|[.?!,;-]\s*no\b[,:.]?\s*(?:wait)?",
    re.I | re.A,
)
_CONCLUSION = re.compile(
    r"\b(?:so|therefore|thus|hence|must be|conclu\w+|finally|overall|in summary|however|but it is|but it's)\b"
    r"|所以|因此",
    re.I | re.A,
)


def match_answer(response: str, choices: Sequence[str], strict: bool = False) -> Match:
    """Which of the choices a response names.

    Args:
        response: the model's text.
        choices: the contents, in the order in which they were shown as (A), (B), ...
        strict: the paper code's rule alone: the whole response is "B", "(B)", "dog" or "(B) dog".

    Example:
        >>> match_answer("The correct answer is (B).", ["cat", "dog"])
        Match(choice=1, step='identifier')
    """
    if strict:
        return _match_exact(response.strip(), choices)
    part = answer_part(response)
    literal = _only([i for i, choice in enumerate(choices) if choice.strip() == part])
    if literal is not None and len(part) > 1:
        return Match(literal, "content")
    contents, text = _contents(choices), normalize(part)
    if any(names_corner(content) for content in contents):
        contents, text = [spell_corners(content) for content in contents], spell_corners(text)
    match = _read(text, contents)
    if match.choice is None and (short := _yes_and_no(contents)):
        return _read(text, short)
    return match


def _read(text: str, contents: Sequence[str]) -> Match:
    for form in (text, without_markup(text)):
        if whole := _match_whole(form, contents):
            return whole
    return _decide(without_markup(text), contents)


def _yes_and_no(contents: Sequence[str]) -> list[str] | None:
    """The first words of two choices that begin with yes and no ("Yes, the piece fits"); None for others."""
    words = [re.match(r"(yes|no)\b", content, re.I) for content in contents]
    short = [word[1].lower() for word in words if word]
    return short if len(contents) == 2 and sorted(short) == ["no", "yes"] else None


def _contents(choices: Sequence[str]) -> list[str]:
    """The choices in one spelling, without labels of their own."""
    contents = ["1" if key(choice) == "one" else normalize(choice) for choice in choices]
    unlabelled = [re.sub(rf"\A\(?{letter}[.):]\s+", "", c) for letter, c in zip(LETTERS, contents, strict=False)]
    return unlabelled if all(len(a) < len(b) for a, b in zip(unlabelled, contents, strict=True)) else contents


def _match_exact(text: str, choices: Sequence[str]) -> Match:
    for i, (letter, choice) in enumerate(zip(LETTERS, choices, strict=False)):
        if text in (letter, f"({letter})"):
            return Match(i, "identifier")
        if text == choice:
            return Match(i, "content")
        if text == f"({letter}) {choice}":
            return Match(i, "both")
    return NO_MATCH


def _only(indices: list[int]) -> int | None:
    return indices[0] if len(indices) == 1 else None


_CLOSE_FORMS = (str.strip, key, lambda t: without_article(key(t)), lambda t: singular(without_article(key(t))))
_LOOSE_FORMS = (*_CLOSE_FORMS, lambda t: compact(without_article(t)))


def _content_index(text: str, contents: Sequence[str], loose: bool) -> int | None:
    """The one choice whose content is the whole text, give or take case, article, plural, and if loose punctuation."""
    for form in _LOOSE_FORMS if loose else _CLOSE_FORMS:
        wanted = form(text)
        if (
            wanted
            and (index := _only([i for i, content in enumerate(contents) if form(content) == wanted])) is not None
        ):
            return index
    if key(text) == "one":
        return _only([i for i, content in enumerate(contents) if key(content) == "1"])
    number = re.fullmatch(r"[$€£]?\s*(-?\d+(?:\.\d+)?)\s*[%°]?", key(text))
    if number:  # "10" for "10 cm", if no other choice has that number
        return _only([i for i, c in enumerate(contents) if re.findall(r"-?\d+(?:\.\d+)?", c) == [number[1]]])
    return None


_LETTER_ALONE = re.compile(
    r"(?:(?:the )?(?:option|choice|answer|letter|选项)\s*:?\s*)?"
    r"[\"'(\[{<]*\s*([A-Za-z])\s*[)\]}>\"']*\s*[.:,;!]?[)\]}>\"']*",
    re.I,
)
_LETTER_AND_CONTENT = re.compile(
    r"(?:(?:the )?(?:option|choice|answer|选项)\s*:?\s*)?"
    r"[(\[{<]?\s*([A-Za-z])(?:\s*[)\]}>][.:,]?|[.:,)]|\s+-|(\s))\s*(.+)",
    re.I | re.S,
)


def _match_whole(text: str, contents: Sequence[str]) -> Match | None:
    """The whole text is an identifier, a content, or an identifier with its content."""
    text = text.strip()
    if not text:
        return NO_MATCH
    if m := _LETTER_ALONE.fullmatch(text):
        letter = LETTERS.find(m[1].upper())
        if letter < len(contents):
            return Match(letter, "identifier")
        index = _content_index(text, contents, loose=False)
        return NO_MATCH if index is None else Match(index, "content")
    index = _content_index(text, contents, loose=False)
    if index is None and (m := _LETTER_AND_CONTENT.fullmatch(text)):
        letter, named = LETTERS.find(m[1].upper()), _content_index(m[3].strip(" ()\"'"), contents, loose=True)
        article = m[1] == "A" and m[2] and letter != named  # "Answer: A dog"
        if letter < len(contents) and named is not None and not article:
            return Match(letter, "both") if named == letter else NO_MATCH
    if index is None:
        index = _content_index(text, contents, loose=True)
    return None if index is None else Match(index, "content")


def _decide(text: str, contents: Sequence[str]) -> Match:
    echo_end, mentions = without_echo(text, find_mentions(text, contents), len(contents))
    if echo_end:
        rest = text[echo_end:].strip(" \n.,;:)]\"'")
        if rest and (whole := _match_whole(rest, contents)) and whole.choice is not None:
            return whole
    mentions = _without_questions(text, mentions)
    said = [m for m in mentions if not is_denied(text, m, mentions)]
    stated = _stated(text, mentions, said)
    if isinstance(stated, Mention):
        return _as_match(_corrected(text, stated, said))
    if last := _last_line(text[echo_end:], contents):
        return last
    if stated is _AMBIGUOUS:
        return NO_MATCH
    affirmed = [m for m in said if is_affirmed(text, m)]
    if len({m.choice for m in affirmed}) == 1:
        return _as_match(affirmed[-1])
    if opening := _opening(text, said, mentions):
        return _as_match(_corrected(text, opening, said))
    return _remaining(text, said)


_AMBIGUOUS = "ambiguous"


def _as_match(mention: Mention) -> Match:
    return Match(mention.choice, mention.step)


def _without_questions(text: str, mentions: list[Mention]) -> list[Mention]:
    """Leaves out what is only asked ("Is it a cat or a dog? It is a dog.")."""
    kept = []
    for mention in mentions:
        end = re.search(r"[.!?\n](?=\s|\Z)", text[mention.end :])
        asked = end is not None and end[0] == "?"
        sentence_end = mention.end + (end.end() if end else 0)
        if not (asked and any(other.start >= sentence_end for other in mentions)):
            kept.append(mention)
    return kept


def _stated(text: str, mentions: list[Mention], said: list[Mention]) -> Mention | str | None:
    """The mention that the last statement of an answer makes; `_AMBIGUOUS` if it makes several."""
    for cue in reversed(list(_CUE.finditer(text))[-20:]):
        if _PLURAL.search(text[: cue.end()][-30:]) or _WRONG_CUE.search(text[max(0, cue.start() - 40) : cue.start()]):
            continue
        begin = cue.end() + len(text[cue.end() :]) - len(text[cue.end() :].lstrip())
        stop = re.search(r"[.!?](?=\s)|\n", text[begin:])
        end = begin + (stop.start() if stop else len(text) - begin)
        inside = [m for m in said if begin <= m.start <= end]
        if not inside:
            continue
        first = inside[0]
        later = [m for m in mentions if m.start > first.start]
        if later and is_list(text, first, later[0]):
            return _AMBIGUOUS
        if first.start - begin <= 12 or len({m.choice for m in inside}) == 1:
            return first
    return None


def _corrected(text: str, mention: Mention, said: list[Mention]) -> Mention:
    """What a later "actually" or "no, wait" puts in the place of an answer, if it names one choice."""
    for marker in _CORRECTION.finditer(text, mention.end):
        later = [m for m in said if marker.end() <= m.start <= marker.end() + 120]
        if later and len({m.choice for m in later}) == 1:
            return later[0]
    return mention


def _last_line(text: str, contents: Sequence[str]) -> Match | None:
    """The last line or sentence, where it is an answer by itself and no part of a list."""
    for pattern in (r"\n+", r"(?<=[.!?])(?<!\b[A-Za-z]\.)\s+"):
        parts = [part for part in re.split(pattern, text) if part.strip()]
        if len(parts) < 2:
            continue
        last, before = (_match_whole(part.strip(" -"), contents) for part in (parts[-1], parts[-2]))
        listed = before is not None and last is not None and before.choice not in (None, last.choice)
        if last and last.choice is not None and not listed:
            return last
    return None


def _opening(text: str, said: list[Mention], mentions: list[Mention]) -> Mention | None:
    """The choice with which the text opens, if it stands there as an answer."""
    if not said or said[0] is not mentions[0]:
        return None
    first = said[0]
    if not re.fullmatch(
        r"[\"'(\[{<\s]*(?:(?:an?|the|option|choice|answer|it is|it's|this is|that is|user:|assistant:|选项)\s*)*",
        text[: first.start],
        re.I,
    ):
        return None
    if len(mentions) > 1 and is_list(text, first, mentions[1]):
        return None
    yes_no = text[first.start : first.end].lower() in ("yes", "no")
    ends = r"[)\]}>\"'\s]*(?:[.,:;!\n(-]|\Z|\b(?:because|since|as)\b)"
    return first if yes_no or re.match(ends, text[first.end :], re.I) else None


def _remaining(text: str, said: list[Mention]) -> Match:
    """The one choice that is mentioned at all, or else the one that the conclusion mentions."""
    if len({m.choice for m in said}) > 1:
        sentence = re.split(r"(?<=[.!?])\s+|\n", text.strip())[-1]
        start = len(text.strip()) - len(sentence)
        conclusion = _CONCLUSION.search(sentence)
        said = [m for m in said if conclusion and m.start >= start + conclusion.end()]
    if len({m.choice for m in said}) != 1:
        return NO_MATCH
    steps = {m.step for m in said}
    return Match(said[0].choice, steps.pop() if len(steps) == 1 else "both")
