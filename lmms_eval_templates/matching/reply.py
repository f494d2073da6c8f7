"""The part of a response that holds the answer."""

from __future__ import annotations

import ast
import json
import re

# A model that repeats itself for pages says nothing new in the middle.
_HEAD, _TAIL = 2_000, 6_000
_BLANK = re.compile(r"\s{20,}")  # in long runs of white space the patterns below would search for seconds

_CHANNEL = re.compile(r"<\|channel\|>\s*final\s*<\|message\|>", re.I)
_THOUGHT_NAMES = r"(?:seed:)?(?:think|thinking|thought|thoughts|reasoning|reflection)"
_OPEN = rf"(?:<{_THOUGHT_NAMES}>|◁think▷|\[think\]|<\|begin_of_thought\|>)"
_CLOSE = rf"(?:</{_THOUGHT_NAMES}>|◁/think▷|\[/think\]|<\|end_of_thought\|>)"
_THOUGHT = re.compile(rf"{_OPEN}(?:(?!{_OPEN}).)*?{_CLOSE}|\A.*{_CLOSE}", re.S | re.I)
_OPEN_THOUGHT = re.compile(rf"{_OPEN}.*", re.S | re.I)
_ANSWER_TAG = re.compile(r"[<\[](answer|final_answer|ans|response)[>\]](.*?)(?:[<\[]/\1[>\]]|\Z)", re.S | re.I)
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
_END = re.compile(
    r"</s>|<eos>|<\|(?:im_end|endoftext|eot_id|end|end_of_text|eom_id|return)\|>|<end_of_turn>|<end_of_utterance>"
)
_SPECIAL_TOKEN = re.compile(
    r"<\|[^<>|]{0,40}\|>|</?s>|<(?:eos|bos|pad|unk|end_of_turn|start_of_turn|end_of_utterance)>|\[/?(?:INST|ASST|BOS|EOS|PAD|SEP|CLS)\]|<0x0A>|[\x00-\x08\x0b-\x1f]"
    r"|<[｜|][^<>]{0,40}[｜|]>|<image>",
    re.I,
)
# The model goes on with a dialogue of its own.
_NEW_TURN = re.compile(
    r"\n\s*(?:#+\s*)?(?:question|q|user|human|instruction|problem)\s*\d*\s*[:：]|\b(?:USER|Human)\s*:|<\|im_start\|>\s*user",
    re.I,
)
_ANSWER_KEYS = (
    *("answer", "final_answer", "correct_answer", "answers", "letter", "label", "choice", "option", "correct_option"),
    *("selected_option", "prediction", "response", "result", "答案", "value", "text"),
)
_OTHER_KEYS = ("error", "reason", "reasoning", "explanation", "message", "thought", "description")


def answer_part(response: str) -> str:
    """The response without reasoning, later turns, special tokens and containers such as tags, boxes and JSON."""
    text = response if len(response) <= _HEAD + _TAIL else response[:_HEAD] + "\n" + response[-_TAIL:]
    text = _BLANK.sub(lambda run: "\n\n" if "\n" in run[0] else " ", text)
    if channel := list(_CHANNEL.finditer(text)):
        text = text[channel[-1].end() :]
    answers = _ANSWER_TAG.findall(text)
    text = _THOUGHT.sub("\n", text)
    if _OPEN_THOUGHT.search(text):  # cut off while reasoning, unless an answer tag ends the thought
        text = answers[-1][1] if answers else _OPEN_THOUGHT.sub("", text)
    elif tagged := _ANSWER_TAG.findall(text):
        text = tagged[-1][1]
    for marker in (_END, _NEW_TURN):
        if (found := marker.search(text)) and text[: found.start()].strip(" \n\t*"):
            text = text[: found.start()]
    text = _SPECIAL_TOKEN.sub(" ", text)
    text = _from_boxes(text)
    structured = _from_json(text)
    return (text if structured is None else structured).strip()


def _from_boxes(text: str) -> str:
    boxes = list(_BOXED.finditer(text))
    if not boxes:
        return text
    last = boxes[-1]
    together = [
        box for box in boxes[:-1] if re.fullmatch(r"[\s$,;]*(?:or|and)[\s$,;]*", text[box.end() : last.start()])
    ]
    return f"{together[-1][1]} or {last[1]}" if together and together[-1][1] != last[1] else last[1]


def _from_json(text: str) -> str | None:
    """The answer of a JSON or Python object in the text; None when there is none."""
    found = re.search(r"\{.*\}|\A\W{0,12}\[.*\]", re.sub(r"```\w*", "", text), re.S)
    if not found or not re.search(r"[\"']", found[0]):
        return None
    for load in (json.loads, ast.literal_eval):
        try:
            value = load(found[0].strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
        answer = _answer_in(value)
        alone = len(found[0]) > 0.8 * len(re.sub(r"```\w*", "", text).strip())
        return answer if answer is not None else "" if alone and isinstance(value, dict) else None
    return None


def _answer_in(value: object, depth: int = 0) -> str | None:
    if depth > 8:
        return None
    if isinstance(value, dict):
        named = {str(key).lower().replace(" ", "_"): inner for key, inner in value.items()}
        for key in _ANSWER_KEYS:
            if key in named:
                return _answer_in(named[key], depth + 1)
        if len(named) == 1:
            ((name, inner),) = named.items()
            if len(name) == 1 and isinstance(inner, str):  # {"B": "dog"}
                return f"({name}) {inner}"
            if name not in _OTHER_KEYS and isinstance(inner, (str, int, float)):
                return str(inner)
        nested = [_answer_in(inner, depth + 1) for inner in value.values() if isinstance(inner, dict)]
        return next((answer for answer in nested if answer is not None), None)
    if isinstance(value, (list, tuple)):
        return " or ".join(str(inner) for inner in value) if all(isinstance(v, (str, int)) for v in value) else None
    return None if value is None else str(value)
