"""From a model's free text to one of the choices (paper section 3.1), by strings alone.

The paper's rule is exact: "B", "(B)", "dog" or "(B) dog". Models rarely answer so tersely, and what exact strings miss
goes to sentence embeddings, which compare "The answer is (B)." with "cat" and "dog" by meaning. So this module reads
the ways in which models really answer, and says None when the text names no choice, or more than one.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Sequence
from typing import NamedTuple

LETTERS = string.ascii_uppercase


class Match(NamedTuple):
    """What a response was taken to mean.

    Attributes:
        choice: position among the choices, or None when strings leave it open.
        step: what decided: "identifier", "content" or "both"; None with choice None.
    """

    choice: int | None
    step: str | None


NO_MATCH = Match(None, None)

# Full-width forms (U+FF01 to U+FF5E) and the ideographic space, common in Chinese models; typographic quotes.
_TO_ASCII = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {
    0x3000: " ", 0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x3002: ".", 0x300C: '"', 0x300D: '"',
    0x3010: "[", 0x3011: "]",
}  # fmt: skip
_SPECIAL_TOKEN = re.compile(r"<\|[^<>|]*\|>|</?s>|<(?:eos|bos|pad|unk|end_of_turn|end_of_utterance)>|<pad>", re.I)
_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?</\1>|^.*?</(?:think|thinking|reasoning)>", re.S | re.I)
_OPEN_THINKING = re.compile(r"<(?:think|thinking|reasoning)>.*", re.S | re.I)
_ANSWER_TAG = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.S | re.I)
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_TEX_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_JSON_KEYS = ("answer", "final_answer", "choice", "option", "prediction", "response")
_MARKUP = re.compile(r"\*\*|__|`+|^\s*#+\s+|^\s*>\s+|\$(?=\(?[A-Za-z]\b)|(?<=[A-Z)])\$", re.M)

_ARTICLE = re.compile(r"^(?:an?|the)\s+", re.I)
_NUMBER_WORDS = dict(
    enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
            "twenty",
        ]
    )
)

# "A" and "I" as words rather than identifiers. No article stands before these.
_WORD = r"[AI]\s+(?!(?:or|and|nor|is|was|because|since|as|seems|looks|would|must|should)\b)[a-z]"

# A statement of the answer; what follows it is where the answer stands.
_CUE = re.compile(
    r"""(?:
        \b(?:answer|choice|option|response|solution|selection|conclusion)s?
          (?:\s+(?:to|for|of)\s+(?:the|this|your|that)\s+question)?
          (?:\s+(?:here|below|above|given|therefore|thus))?
          \s*(?:\bis\b|\bwould\s+be\b|\bshould\s+be\b|\bmust\s+be\b|\bwill\s+be\b|\bseems\s+to\s+be\b|\bappears\s+to\s+be\b|:|=|->|=>)
      | \b(?:the|this)\s+(?:correct|right|best)\s+(?:one|letter)\s+(?:is|would\s+be)\b
      | \b(?:i|we|i'd|i'll|i\s+would|i\s+will|would|let's|we\s+can|we\s+should|we\s+must)\s+(?:\w+ly\s+)?
          (?:choose|chose|pick|picked|select|selected|go\s+with|opt\s+for|say|answer|conclude)\b(?:\s+that\s+it\s+is\b)?\s*:?
      | \b(?:therefore|thus|hence|so|finally),?\s+(?=\(?[A-Za-z]\)?\s*[.!]?\s*$)
      | (?:答案|正确答案|正确选项)\s*(?:应该是|应为|是|为|选)?\s*:? | (?:我选择|我选|应选|故选|选择|选)\s*:?
    )\s*(?:option|choice|answer|letter|选项)?\s*[:=]?\s*""",
    re.I | re.X,
)
# "... is the correct answer" after a choice.
_AFFIRMED = re.compile(
    r"^[)\]\s.:\"']*(?:\w+\s+){0,3}?(?:is|seems|looks|appears|would\s+be|must\s+be)\s+(?:to\s+be\s+)?(?:the\s+)?(?:only\s+)?"
    r"(?:most\s+likely\s+)?(?:correct|right|best|answer|true|most\s+\w+)\b",
    re.I,
)
_DENIED_AFTER = re.compile(
    r"^[)\]\s\"']*(?:[:(-]\s*)?(?:(?:incorrect|wrong|false)\b|(?:\w+\s+){0,2}?(?:is|are|was|can|cannot|could|would|does|do|seems?|looks?)\s*(?:clearly|also|probably)?\s*"
    r"(?:not\b|n't|incorrect|wrong|false|be\s+(?:ruled|eliminated|excluded)|ruled\s+out|eliminated|excluded)"
    r"|(?:\w+\s+){0,2}?(?:isn't|aren't|wasn't|can't|doesn't|won't)\b)",
    re.I,
)
_DENIED_BEFORE = re.compile(
    r"(?:\bnot|n't|\bno|\bnor|\bneither|\brather\s+than|\binstead\s+of|\bexcept|\bunlike|\bexclude|\beliminate|\brule\s+out|\bruling\s+out)"
    r"\s+(?:(?:a|an|the|any|be|option|choice|answer|really|just|like|show|see|have|contain)\s+){0,3}[(\[\"']*$",
    re.I,
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
    text = _answer_part(response)
    contents = [_normalize(choice) for choice in choices]
    return (
        _match_whole(text, contents)
        or _match_stated(text, contents)
        or _match_mentioned(_without_echo(text, contents), contents)
        or NO_MATCH
    )


def _match_exact(text: str, choices: Sequence[str]) -> Match:
    for i, (letter, choice) in enumerate(zip(LETTERS, choices, strict=False)):
        if text in (letter, f"({letter})"):
            return Match(i, "identifier")
        if text == choice:
            return Match(i, "content")
        if text == f"({letter}) {choice}":
            return Match(i, "both")
    return NO_MATCH


def _normalize(text: str) -> str:
    return " ".join(text.translate(_TO_ASCII).split())


def _bare(text: str) -> str:
    """For comparing whole contents: no case, no closing punctuation, no quotes."""
    return text.strip().strip("\"'").rstrip(".!,;:").strip("\"' ").casefold()


def _answer_part(response: str) -> str:
    """The response without reasoning, special tokens, tags and markup."""
    text = response.translate(_TO_ASCII)
    text = _SPECIAL_TOKEN.sub(" ", text)
    text = _OPEN_THINKING.sub("", _THINKING.sub(" ", text))
    for container in (_ANSWER_TAG, _BOXED):
        if inside := container.findall(text):
            text = inside[-1]
    text = _TEX_TEXT.sub(r"\1", text)
    text = re.sub(r"^\s*```\w*\s*|\s*```\s*$", "", text)
    if text.strip().startswith("{"):
        try:
            fields = {str(k).lower(): v for k, v in json.loads(text).items()}
            text = next((str(fields[key]) for key in _JSON_KEYS if key in fields), text)
        except ValueError:
            pass
    return _MARKUP.sub("", text).strip()


def _letter_index(letter: str, contents: Sequence[str]) -> int | None:
    index = LETTERS.find(letter.upper())
    return index if 0 <= index < len(contents) else None


def _content_index(text: str, contents: Sequence[str]) -> int | None:
    """The one choice whose content is the whole text, give or take an article, case and punctuation."""
    for form in (str.strip, _bare, lambda t: _ARTICLE.sub("", _bare(t))):
        same = [i for i, content in enumerate(contents) if form(content) == form(text)]
        if len(same) == 1:
            return same[0]
    words = [
        i for i, content in enumerate(contents) if content.isdigit() and _NUMBER_WORDS.get(int(content)) == _bare(text)
    ]
    return words[0] if len(words) == 1 else None


def _match_whole(text: str, contents: Sequence[str]) -> Match | None:
    """The whole text is an identifier, a content, or an identifier with its content."""
    line = _normalize(text)
    if not line:
        return NO_MATCH
    if m := re.fullmatch(
        r"(?:(?:option|choice|answer)\s+)?[\"']?[(\[]?\s*([A-Za-z])\s*[)\]]?[.:,!]?[\"']?", line, re.I
    ):
        index = _letter_index(m[1], contents)
        if index is not None:
            return Match(index, "identifier")
        index = _content_index(line, contents)
        return Match(index, "content") if index is not None else NO_MATCH
    index = _content_index(line, contents)
    if index is not None:
        return Match(index, "content")
    if m := re.fullmatch(
        r"(?:(?:option|choice|answer)\s+)?[(\[]?([A-Za-z])(?:[)\]][.:,]?|[.:,])?\s+[\"'(]*(.+?)[\"')]*", line
    ):
        index, named = _letter_index(m[1], contents), _content_index(m[2], contents)
        if index is not None and index == named:
            return Match(index, "both")
    return None


def _mentions(text: str, contents: Sequence[str]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Positions at which identifiers and contents stand in a text, without those that the text denies."""

    def keep(start: int, end: int) -> bool:
        return not (_DENIED_BEFORE.search(text[:start]) or _DENIED_AFTER.search(text[end:]))

    letters = LETTERS[: len(contents)]
    identifier = re.compile(
        rf"[(\[]([{letters}])[)\]]"  # (B)
        rf"|(?<![\w'])([{letters}])(?=\)|[.:](?:\s|$))"  # B)  B.  B:
        rf"|\b(?:option|choice|answer|letter|point|选项)\s*[\"']?([{letters}])\b"  # option B
        rf"|(?<![\w'\-.])(?!{_WORD})([{letters}])(?![\w'\-])"  # B, but not the words A and I
    )
    identifiers: dict[int, list[int]] = {}
    for m in identifier.finditer(text):
        if keep(m.start(), m.end()):
            identifiers.setdefault(LETTERS.index(m[m.lastindex or 0]), []).append(m.start())

    spans: list[tuple[int, int, int]] = []
    for i, content in enumerate(contents):
        core = _ARTICLE.sub("", _bare(content))
        if not core:
            continue
        left = r"(?<!\w)(?<!\d[.,])" + (r"(?<!(?<!\w)-)" if core[0].isdigit() else "")
        right = r"(?!\w)(?![.,]\d)"
        body = r"\s+".join(map(re.escape, core.split()))
        # A content that is one letter would be found in every article: case must agree there.
        flags = 0 if len(core) == 1 and core.isalpha() else re.I
        body = re.escape(content) if not flags else body
        spans += [(m.start(), m.end(), i) for m in re.finditer(left + body + right, text, flags)]
    # The longest content wins: "dark red" is no mention of "red".
    spans = [s for s in spans if not any(o[0] <= s[0] and s[1] <= o[1] and o[1] - o[0] > s[1] - s[0] for o in spans)]
    found: dict[int, list[int]] = {}
    for start, end, i in spans:
        if keep(start, end):
            found.setdefault(i, []).append(start)
    if not found:
        for i, content in enumerate(contents):
            word = _NUMBER_WORDS.get(int(content)) if content.isdigit() and len(content) < 3 else None
            if word and word != "one" and re.search(rf"\b{word}\b", text, re.I):
                found.setdefault(i, []).append(0)
    return identifiers, found


def _combine(identifiers: dict[int, list[int]], found: dict[int, list[int]]) -> Match | None:
    if len(identifiers) > 1 or len(found) > 1:
        return None
    index, named = next(iter(identifiers), None), next(iter(found), None)
    if index is None and named is None:
        return None
    if index is None or named is None:
        return Match(named, "content") if index is None else Match(index, "identifier")
    return Match(index, "both") if index == named else None


def _match_stated(text: str, contents: Sequence[str]) -> Match | None:
    """The last statement of an answer, "the answer is ..." or "... is the correct answer", that names one choice."""
    for cue in reversed(list(_CUE.finditer(text))):
        rest = text[cue.end() :].strip()
        sentence = re.split(r"(?<=\w[)\]\"'.!])\s+(?=[A-Z])|\n|;", rest + " ")[0].strip() if rest else ""
        # "A. The ..." is cut after "A.", "B. dog" is not a sentence end but an identifier with its content.
        for part in (sentence, rest.split("\n")[0]):
            whole = _match_whole(part, contents)
            if whole and whole.choice is not None:
                return whole
        if m := re.match(r"[\"'(\[]*([A-Z])(?:[)\]\"']|[.:,]|$|\s+(?:because|since|as|for)\b)", rest):
            index = _letter_index(m[1], contents)
            if index is not None and not _DENIED_AFTER.search(rest[m.end(1) :]):
                return Match(index, "identifier")
        stated = _combine(*_mentions(sentence, contents))
        if stated:
            return stated
    for sentence in reversed(re.split(r"(?<=[.!?;])\s+|\n", text)):
        identifiers, found = _mentions(sentence, contents)
        affirmed = [
            {i: p for i, p in group.items() if any(_AFFIRMED.search(_after(sentence, q, i, contents)) for q in p)}
            for group in (identifiers, found)
        ]
        if stated := _combine(*affirmed):
            return stated
    return None


def _after(sentence: str, position: int, index: int, contents: Sequence[str]) -> str:
    """What follows the mention of choice `index` at `position`."""
    content = contents[index]
    if sentence[position : position + len(content)].casefold() == content.casefold():
        return sentence[position + len(content) :]
    m = re.match(rf"(?:[(\[]|\w+\s*[\"']?)?{LETTERS[index]}[)\]]?", sentence[position:])
    return sentence[position + m.end() :] if m else sentence[position + 1 :]


def _without_echo(text: str, contents: Sequence[str]) -> str:
    """The text without a repetition of the whole list of choices."""
    parts = [
        rf"[(\[]?{letter}[)\].:]+\s*{re.escape(content)}" for letter, content in zip(LETTERS, contents, strict=False)
    ]
    return re.sub(r"[\s,;.]*".join(parts), " ", text, flags=re.I) if len(contents) > 1 else text


def _match_mentioned(text: str, contents: Sequence[str]) -> Match | None:
    """The one choice that the text opens with, or else the one that it mentions at all."""
    whole = _match_whole(text, contents)
    if whole and whole.choice is not None:
        return whole
    opening = re.match(r"[\"']?([^,.;:!\n]+?)[\"']?\s*[,.;:!\n](?!\d)", text)
    if opening:
        first = _match_whole(opening[1], contents)
        if first and first.step == "content" and not _DENIED_AFTER.search(text[opening.end(1) :]):
            return first
    return _combine(*_mentions(text, contents))
