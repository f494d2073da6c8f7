"""Puts instruction templates around the questions of a training mix (paper section 4.1).

Two passes over the file: the first finds the bytes of each text that gets a template, then templates are dealt to them,
and the second copies the file and replaces those bytes alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.encoder import encode_basestring, encode_basestring_ascii  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tqdm import tqdm

from lmms_eval_templates.sets import TemplateError
from lmms_eval_templates.space import CHOICE, QUESTION, assign_templates

from .manifest import make_manifest, manifest_path
from .plan import POOLS, REMOVE, REMOVE_AND_CLOSE, Options, Plan, Pool
from .records import Conversation, Place, RecordError, find_strings, has_image
from .rules import QUESTION_KINDS, Instruction, kind_of, render, take_apart
from .scan import Element, byte_length, scan

_BAR_STEP = 4 << 20
_LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}


class _Progress:
    """A file that moves a bar, and feeds a hash, as it is read."""

    def __init__(self, file: BinaryIO, bar: tqdm, digest: Any = None):
        self.file, self.bar, self.digest = file, bar, digest

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.bar.update(len(data))
        if self.digest:
            self.digest.update(data)
        return data


def augment(source: str | Path, target: str | Path, options: Options, progress: bool = True) -> dict[str, Any]:
    """Writes `target`, and a manifest beside it (`manifest_path`).

    Args:
        source: LLaVA JSON, JSON Lines, or records with `messages`.
        target: where the same records go, in the same form.
        options: what to do.
        progress: whether to show a bar.

    Returns:
        The manifest.

    Raises:
        TemplateError: a record is bad, or there are fewer questions than templates. `target` is as it was.
    """
    source, target = Path(source), Path(target)
    results = (target, manifest_path(target))
    partial = [path.with_name(path.name + ".partial") for path in results]
    try:
        _check_paths(source, target, [*results, *partial])
        try:
            for path in partial:
                path.unlink(missing_ok=True)  # of a run that was killed; it may be a link, so it is not written through
                path.touch(exist_ok=False)
            with tqdm(total=2 * source.stat().st_size, unit="B", unit_scale=True, disable=not progress) as bar:
                plan = _find_edits(source, options, bar)
                pools = _deal(plan, options)
                manifest = make_manifest(plan, pools, options)
                _write(source, partial[0], plan, pools, bar)
            partial[1].write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")
            os.replace(partial[1], results[1])
            os.replace(partial[0], target)
        finally:
            for path in partial:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise TemplateError(f"{error.filename or target}: {error.strerror or error}") from error
    return manifest


def _check_paths(source: Path, target: Path, written: Sequence[Path]) -> None:
    if not source.is_file():
        raise TemplateError(f"no file {source}")
    if not target.parent.is_dir():
        raise TemplateError(f"no folder {target.parent} to write {target.name} to")
    if target.is_dir():
        raise TemplateError(f"{target} is a folder; name a file, e.g. {target / 'mix_templates.json'}")
    if not target.suffix:
        raise TemplateError(f"{target} has no ending; name it {target}.json or {target}.jsonl")
    for path in written:
        if path.is_dir():
            raise TemplateError(f"{path} is a folder, and a file of that name is written; name another output")
        if path.exists() and path.samefile(source):
            raise TemplateError(f"{path} is the input, and a file of that name is written; name another output")


def _find_edits(source: Path, options: Options, bar: tqdm) -> Plan:
    plan = Plan()
    bar.set_description("reading")
    previous_end: int | None = None  # of the last record that stands before this one, kept or not
    removed_from: int | None = None  # where records were left out before the first one that is kept
    with source.open("rb") as file:
        for element in scan(_Progress(file, bar, plan.digest)):  # type: ignore[arg-type]
            try:
                if element.fault:
                    raise RecordError(element.fault)
                spans, pool, kind = _record_edits(element, options)
            except RecordError as error:
                _bad_record(plan, element, error, source, options)
                if element.repair:
                    plan.edit([(element.start, element.end)], REMOVE_AND_CLOSE)
                elif previous_end is None:
                    removed_from = element.start if removed_from is None else removed_from
                else:
                    plan.edit([(previous_end, element.end)], REMOVE)
                    previous_end = element.end
                continue
            if removed_from is not None:
                plan.edit([(removed_from, element.start)], REMOVE)
                removed_from = None
            previous_end = element.end
            plan.records += 1
            plan.kinds[kind] += 1
            plan.changed_records += bool(spans)
            plan.edit(spans, pool)
    if plan.records == 0:
        raise TemplateError(f"{source}: no record that can be used")
    return plan


def _bad_record(plan: Plan, element: Element, error: RecordError, source: Path, options: Options) -> None:
    number = plan.records + len(plan.bad)
    name = element.value.get("id") if isinstance(element.value, dict) else None
    if options.on_error == "stop":
        known = "" if name is None else f" (id {json.dumps(name)})"
        raise TemplateError(
            f"{source}, record {number}{known} at byte {element.start:,}: {error}\n"
            "mend it, or leave bad records out with --on-error skip; records are counted from 0"
        )
    plan.bad.append({"record": number, "id": name, "byte": element.start, "reason": str(error)})


def _record_edits(element: Element, options: Options) -> tuple[list[tuple[int, int]], int, str]:
    """First byte and end of what templates replace in a record, their pool, and the kind of the record."""
    conversation = Conversation(element.value)
    with_image = has_image(element.value)
    if not with_image and options.text_only == "keep":
        return [], 1, "text-only"
    chosen: list[Place] = []
    instructions: list[Instruction] = []
    first_kind = None
    for places in conversation.user_places():
        kind = "empty"
        for place in places:  # the first part with an instruction in it is the one that asks
            instruction = take_apart(place[1])
            if (kind := kind_of(instruction)) != "empty":
                break
        first_kind = first_kind or kind
        if kind in QUESTION_KINDS or (options.all_instructions and kind != "empty"):
            chosen.append(place)
            instructions.append(instruction)
            if options.turns == "first":
                break
    starts = find_strings(element.raw, chosen, conversation) if chosen else []
    spans = [
        _replaced_part(element.raw, start, text, instruction)
        for start, (_, text), instruction in zip(starts, chosen, instructions, strict=True)
    ]
    kind = (first_kind or "no human turn") if with_image else "text-only"
    return _in_bytes(element, spans), int(not with_image), kind


def _replaced_part(raw: str, start: int, text: str, instruction: Instruction) -> tuple[int, int]:
    """What a template takes the place of in a record: the string at `start`, or nothing.

    Templates end with their question. So one is only inserted before an open question, where the string stands in the
    file as it would be written anew.
    """
    if instruction.choices is None and raw.startswith(encode_basestring_ascii(text), start):
        start += len(encode_basestring_ascii(instruction.before)) - 1
        return start, start
    return start, scanstring(raw, start + 1)[1]


def _in_bytes(element: Element, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """First byte in the file and end of each span of a record's text."""
    raw, at, done, found = element.raw, element.start, 0, []
    if raw.isascii():
        return [(at + start, at + end) for start, end in spans]
    for start, end in spans:
        at += byte_length(raw[done:start])
        found.append((at, at := at + byte_length(raw[start:end])))
        done = end
    return found


def _deal(plan: Plan, options: Options) -> list[Pool]:
    """The templates for records with an image, and for those without."""
    wanted = [plan.actions.count(pool) for pool in range(len(POOLS))]
    if not any(wanted):
        raise TemplateError(
            f"none of {plan.records:,} records has a question to put a template on; kinds of record: "
            f"{dict(plan.kinds)}; --all-instructions and --text-only image-free reach more"
        )
    space = QUESTION.image_free()
    counts = _template_counts(plan, options)
    for what, count, number, most in zip(
        ("questions", "questions in records without an image"), counts, wanted, (len(QUESTION), len(space)), strict=True
    ):
        if number and count > min(number, most):
            fault = "each template must be used" if count > number else f"there are {most:,} of them"
            fewer = sum(counts) * min(number, most) // count
            raise TemplateError(f"{count:,} templates for {number:,} {what}: {fault}; take {fewer:,} or fewer in all")
    drawn = QUESTION.sample_indices(counts[0] if wanted[0] else 0, options.seed)
    free_texts = space.sample(counts[1] if wanted[1] else 0, options.seed)
    drawn_free = np.array([QUESTION.index(text) for text in free_texts], dtype=np.int64)
    return [
        Pool(
            questions,
            CHOICE.sample_indices(len(questions), options.seed),
            assign_templates(number, questions.tolist(), options.seed) if number else np.empty(0, dtype=np.int64),
        )
        for questions, number in zip((drawn, drawn_free), wanted, strict=True)
    ]


def _template_counts(plan: Plan, options: Options) -> tuple[int, int]:
    """Templates for records with an image, and for those without: shares by the number of records."""
    count = options.num_templates or min(max(1, round((options.ratio or 0) * plan.records)), len(QUESTION))
    free_records = plan.kinds["text-only"] if options.text_only == "image-free" else 0
    free = round(count * free_records / plan.records)
    return max(count - free, int(free_records < plan.records)), max(free, int(free_records > 0))


def _write(source: Path, target: Path, plan: Plan, pools: Sequence[Pool], bar: tqdm) -> None:
    bar.set_description("writing")
    texts = [pool.texts for pool in pools]
    insertions = [[_before_question(question) for question, _ in pairs] for pairs in texts]
    dealt = [iter(pool.dealt.data) for pool in pools]
    with source.open("rb", 1 << 20) as reader, target.open("wb", 1 << 20) as writer:
        position, before = 0, bar.n
        for start, length, action in zip(plan.starts, plan.lengths, plan.actions, strict=True):
            _copy(reader, writer, start - position)
            if action >= REMOVE:
                reader.seek(length, os.SEEK_CUR)
                writer.write(b"]\n" if action == REMOVE_AND_CLOSE else b"")
            elif length:
                writer.write(_replaced(reader.read(length), *texts[action][next(dealt[action])]))
            else:
                writer.write(insertions[action][next(dealt[action])])
            position = start + length
            if position + before - bar.n > _BAR_STEP:
                bar.update(position + before - bar.n)
        _copy(reader, writer, source.stat().st_size - position)
        bar.update(bar.total - bar.n)


def _copy(reader: BinaryIO, writer: BinaryIO, count: int) -> None:
    while count > 0:
        data = reader.read(min(count, 1 << 20))
        if not data:
            raise TemplateError("the input became shorter while it was read")
        writer.write(data)
        count -= len(data)


def _before_question(template: str) -> bytes:
    """What a template says before its question, which must be its end, as JSON."""
    before, after = template.split("{question}")
    assert not after, f"a template that does not end with its question: {template!r}"
    return encode_basestring_ascii(before)[1:-1].encode()


def _replaced(literal: bytes, question_template: str, choice_template: str) -> bytes:
    """A JSON string with a template around the question in it, in ASCII if it was in ASCII.

    Characters that some readers of JSON Lines take for the end of a line are escaped.
    """
    new = render(take_apart(scanstring(literal.decode(), 1)[0]), question_template, choice_template)
    if not literal.isascii():
        try:
            return encode_basestring(new).translate(_LINE_ENDS).encode()
        except UnicodeEncodeError:  # half of a surrogate pair, written as \ud83d
            pass
    return encode_basestring_ascii(new).encode()
