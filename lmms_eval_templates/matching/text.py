"""One spelling for what models spell in many ways: widths, quotes, minus signs, markup, numbers."""

from __future__ import annotations

import re
import unicodedata

# fmt: off
_UNITS = {word: n for n, word in enumerate((
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
))}
_TENS = {word: 10 * n for n, word in enumerate((
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
), start=2)}
# fmt: on
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6}
_WORD = "|".join([*_UNITS, *_TENS, *_SCALES])
_NUMBER_WORDS = re.compile(rf"\b(?:{_WORD})(?:[\s-]+(?:and\s+)?(?:{_WORD}))*\b", re.I | re.A)
_SIGNED = re.compile(r"\b(?:minus|negative)\s+(?=\d)", re.I | re.A)

_SIGNS = str.maketrans(
    {
        **dict.fromkeys("‘’ʼ´′", "'"),
        **dict.fromkeys("“”„″「」『』《》", '"'),
        **dict.fromkeys("−–—‐‑‒―", "-"),
        "。": ".", "、": ",", "【": "[", "】": "]", "〔": "(", "〕": ")", "×": "*", "·": " ", "•": " ", "→": " ",
    }
)  # fmt: skip
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}")
_LATEX_MARK = re.compile(r"\\[()\[\],;! ]|\\(?:left|right|displaystyle|quad)\b")
_MATH = re.compile(r"\$(?!\d)([^$\n]+)\$|\$([^$\n]*\\[^$\n]*)\$")
_DEGREES = re.compile(r"(?<=\d)(?:\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)|[\s-]*degrees?\b)", re.I)
_CORNER = re.compile(r"\b(?:top|upper|bottom|lower)[\s-]+(?:left|right|center|middle)\b", re.I)
_UPPER_LOWER = re.compile(r"\b(upper|lower)(?=[\s-]+(?:left|right|center|middle)\b)", re.I)
_HAND = re.compile(r"\b((?:top|bottom)[\s-]+(?:left|right))[\s-]hand\b", re.I)
_DOLLARS = re.compile(r"\$(?!\d)|(?<=\w)\$")
_MARKUP = re.compile(r"\*\*|__|`+|^[ \t]*(?:#+|>+|[-*+])[ \t]+|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)", re.M)


def normalize(text: str) -> str:
    """The text in one spelling; line breaks stay, other white space is folded."""
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)
    text = _LATEX_TEXT.sub(r" \1 ", text)
    text = _MATH.sub(lambda m: m[1] or m[2], text)
    text = _FRACTION.sub(r"\1/\2", text)
    text = _LATEX_MARK.sub(" ", text).replace("\\%", "%")
    text = _DOLLARS.sub("", text)
    text = re.sub(r"(?<=\d)\s*(?:percent|per cent)\b|(?<=\d) %", "%", text, flags=re.I)
    text = re.sub(r"\bgrey\b", "gray", text, flags=re.I)
    text = _NUMBER_WORDS.sub(_digits, text)
    text = _DEGREES.sub("°", text)
    text = _SIGNED.sub("-", text)
    text = re.sub(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda m: m[0].replace(",", ""), text)
    text = re.sub(r"(?<![\d.])\.(?=\d)", "0.", text)
    text = re.sub(r"(\d)\.0+(?![\d.])", r"\1", text)
    text = re.sub(r"(\d\.\d*[1-9])0+(?![\d.])", r"\1", text)
    return "\n".join(" ".join(line.split()) for line in text.split("\n")).strip()


def names_corner(text: str) -> bool:
    """Whether it speaks of the top left, the lower right and so on."""
    return bool(_CORNER.search(text))


def spell_corners(text: str) -> str:
    """One spelling of corners: "upper left-hand", which embeddings take for another place, becomes "top left"."""
    return _HAND.sub(r"\1", _UPPER_LOWER.sub(lambda m: {"upper": "top", "lower": "bottom"}[m[0].lower()], text))


def without_markup(text: str) -> str:
    """The text without the signs of Markdown. Not for contents, in which a star can be a product."""
    return _MARKUP.sub("", text)


def _digits(match: re.Match[str]) -> str:
    words = re.split(r"[\s-]+(?:and\s+)?", match[0].lower())
    if words == ["one"]:  # "the right one", "one of them": mentions.py looks at its surroundings
        return match[0]
    numbers: list[int] = []
    last = ""
    for word in words:
        if word in _SCALES and numbers:
            numbers[-1] *= _SCALES[word]
        elif word in _UNITS and (last in _TENS or last in _SCALES) and _UNITS[word] < 10 + 10 * (last in _SCALES):
            numbers[-1] += _UNITS[word]
        elif word in _TENS and last in _SCALES:
            numbers[-1] += _TENS[word]
        else:
            numbers.append(_UNITS.get(word, _TENS.get(word, _SCALES.get(word, 0))))
        last = word
    return " ".join(map(str, numbers))


def key(text: str) -> str:
    """For comparing whole contents: no case, no outer quotes or closing punctuation."""
    return text.strip().strip("\"'").rstrip(".,;:!").strip("\"' ").casefold()


def compact(text: str) -> str:
    """For comparing whole contents however they are spaced and punctuated."""
    return re.sub(r"[\s;!?\"'()\[\]{}<>]|[.,:-](?!\d)", "", text).casefold()


def without_article(text: str) -> str:
    return re.sub(r"\A(?:an?|the)\s+(?=\w)(?!(?:is|are|was|and|or|has)\b)", "", text, flags=re.I)


def singular(text: str) -> str:
    return re.sub(r"(?<=[A-Za-z]{2})(?:(?<=[sxh])es|(?<!s)s)\Z", "", text)
