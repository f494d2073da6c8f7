"""Sharing a prefix against plain `generate`, logits and tokens, over tiny models of real architectures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny_models
import torch

from lmms_eval_templates.models import packed
from lmms_eval_templates.models.packed import check_packable, generate_packed
from lmms_eval_templates.models.prompts import Group
from lmms_eval_templates.models.runner import Runner, generation_options
from lmms_eval_templates.models.self_check import choose_mode
from lmms_eval_templates.models.shared_prefix import (
    NotShareable,
    common_prefix,
    compute_prefix,
    generate_grouped,
    generate_single,
    images_encoded_once,
    prompt_length,
)

NEW = 6
# Of logits with a standard deviation of 1.5 to 4; float32 rounding gives 1e-5, the mildest fault 0.04.
NOISE = 2e-4
# What shared_prefix has to pick for each architecture. Packed is impossible where a layer keeps a recurrent state
# (Qwen3.5) and beyond a sliding window; PaliGemma reads image and question in both directions, and InstructBLIP's
# image features depend on the question.
MODES = {
    "llava": "packed",
    "llava_next": "packed",
    "llava_onevision": "packed",
    "qwen2_vl": "packed",
    "qwen2_5_vl": "packed",
    "qwen3_vl": "packed",
    "idefics2": "packed",
    "idefics3": "packed",
    "smolvlm": "packed",
    "internvl": "packed",
    "gemma3": "packed",
    "mllama": "packed",
    "gemma3_narrow": "grouped",
    "qwen3_5": "grouped",
    "paligemma": "single",
    "instructblip": "single",
}


@pytest.fixture(scope="module", params=MODES)
def tiny(request: pytest.FixtureRequest) -> tiny_models.Tiny:
    model = getattr(tiny_models, request.param)()
    model.name = request.param
    return model


def plain(model: torch.nn.Module, prompts: list[dict], **options: object) -> list:
    """transformers alone: each prompt through `generate`."""
    outputs = []
    for prompt in prompts:
        if hasattr(model, "model") and hasattr(model.model, "rope_deltas"):
            model.model.rope_deltas = None
        options = {"max_new_tokens": NEW, "do_sample": False, **options}
        output = model.generate(**prompt, **options, return_dict_in_generate=True, output_logits=True)
        tokens = output.sequences[0, prompt["input_ids"].shape[1] :]
        outputs.append(SimpleNamespace(tokens=tokens, logits=torch.stack(output.logits)[:, 0]))
    return outputs


def worst(got: list, expected: list) -> float:
    assert [g.tokens.tolist() for g in got] == [e.tokens.tolist() for e in expected]
    return max(float((g.logits - e.logits).abs().max()) for g, e in zip(got, expected, strict=True))


@torch.inference_mode()
def test_the_self_check_picks_the_fastest_exact_mode(tiny):
    choice = choose_mode(tiny.model, tiny.prompts(), NEW)
    assert choice.mode == MODES[tiny.name], choice.reason


@torch.inference_mode()
def test_logits_and_tokens_are_those_of_plain_generate(tiny):
    prompts = tiny.prompts(8)
    expected = plain(tiny.model, prompts)
    single = list(generate_single(tiny.model, prompts, keep_logits=True, max_new_tokens=NEW))
    assert worst(single, expected) == 0  # it is plain generate, but for the encoded image
    if MODES[tiny.name] == "single":
        return
    prefix = compute_prefix(tiny.model, prompts, common_prefix(tiny.model, prompts))
    assert worst(generate_grouped(tiny.model, prompts, prefix, keep_logits=True, max_new_tokens=NEW), expected) < NOISE
    if MODES[tiny.name] == "packed":
        check_packable(tiny.model, prompts, prefix, NEW)
        assert (
            worst(generate_packed(tiny.model, prompts, prefix, keep_logits=True, max_new_tokens=NEW), expected) < NOISE
        )


@torch.inference_mode()
def test_the_image_changes_the_logits(tiny):
    """Else the tests above could not tell whether the right image is seen."""
    (prompt,) = tiny.prompts(1)
    generator = torch.Generator().manual_seed(9)
    other = {
        name: torch.randn(value.shape, generator=generator) if value.is_floating_point() else value
        for name, value in prompt.items()
    }
    (one,), (two,) = plain(tiny.model, [prompt]), plain(tiny.model, [other])
    assert float((one.logits[0] - two.logits[0]).abs().max()) > 0.05


@torch.inference_mode()
def test_packing_in_pieces_and_stopping_rows_early(monkeypatch):
    for name in ("llava", "qwen2_5_vl", "mllama"):
        tiny = getattr(tiny_models, name)()
        prompts = tiny.prompts(9)
        free = plain(tiny.model, prompts)
        # A token that some prompt gives in the middle: it ends rows at different steps.
        end = int(free[0].tokens[2])
        tiny.model.generation_config.eos_token_id = end
        monkeypatch.setitem(packed.PIECE_TOKENS, "cpu", 20)
        prefix = compute_prefix(tiny.model, prompts, common_prefix(tiny.model, prompts))
        got = generate_packed(tiny.model, prompts, prefix, max_new_tokens=NEW)
        for g, e in zip(got, plain(tiny.model, prompts), strict=True):
            new = g.tokens.tolist()
            assert new[: len(e.tokens)] == e.tokens.tolist()
            assert set(new[len(e.tokens) :]) <= {tiny_models.PAD}


@torch.inference_mode()
def test_a_second_image_is_not_seen_through_the_first_ones_positions():
    """M-RoPE models remember position offsets of the last image; the prefix must bring its own."""
    tiny = tiny_models.qwen2_5_vl()
    first = tiny.prompts(3)
    wide = {"pixel_values": tiny_models._pixels(64, 384), "image_grid_thw": torch.tensor([[1, 4, 16]])}
    other = tiny_models.Tiny(tiny.model, tiny_models._framed(16), wide, tiny.per_token).prompts(3)
    expected = plain(tiny.model, first)
    for generate in (generate_packed, generate_grouped):
        prefix = compute_prefix(tiny.model, first, common_prefix(tiny.model, first))
        plain(tiny.model, other)  # leaves its offsets behind
        assert worst(generate(tiny.model, first, prefix, keep_logits=True, max_new_tokens=NEW), expected) < NOISE


@torch.inference_mode()
def test_a_repetition_penalty_of_the_checkpoint_is_applied():
    tiny = tiny_models.llava()
    prompts = tiny.prompts(8)
    without = plain(tiny.model, prompts)
    tiny.model.generation_config.repetition_penalty = 1.8
    expected = plain(tiny.model, prompts)
    assert [e.tokens.tolist() for e in expected] != [e.tokens.tolist() for e in without]
    prefix = compute_prefix(tiny.model, prompts, common_prefix(tiny.model, prompts))
    for generate in (generate_packed, generate_grouped):
        assert worst(generate(tiny.model, prompts, prefix, keep_logits=True, max_new_tokens=NEW), expected) < NOISE


@torch.inference_mode()
def test_settings_that_count_padding_are_not_packed():
    tiny = tiny_models.llava()
    tiny.model.generation_config.no_repeat_ngram_size = 2
    choice = choose_mode(tiny.model, tiny.prompts(), NEW)
    assert choice.mode == "grouped"
    assert "no_repeat_ngram_size" in choice.reason


def test_what_cannot_share():
    tiny = tiny_models.llava()
    prompts = tiny.prompts(3)
    assert common_prefix(tiny.model, prompts) >= len(tiny.prefix)

    ids = torch.cat([torch.tensor([[7, 8]]), prompts[0]["input_ids"]], 1)
    behind = [{**prompts[0], "input_ids": ids, "attention_mask": torch.ones_like(ids)}, prompts[1]]
    with pytest.raises(NotShareable, match="no common beginning"):
        common_prefix(tiny.model, behind)

    question_first = [
        {**p, "input_ids": torch.cat([torch.tensor([[1, 20 + k]]), p["input_ids"]], 1)} for k, p in enumerate(prompts)
    ]
    for prompt in question_first:
        prompt["attention_mask"] = torch.ones_like(prompt["input_ids"])
    with pytest.raises(NotShareable, match="image stands behind"):
        common_prefix(tiny.model, question_first)

    other_image = [prompts[0], {**prompts[1], "pixel_values": prompts[1]["pixel_values"] + 1}]
    with pytest.raises(NotShareable, match="pixel_values differs"):
        common_prefix(tiny.model, other_image)


def test_prompts_that_are_equal_still_keep_a_token_each():
    tiny = tiny_models.llava()
    prompts = tiny.prompts(1) * 3
    assert common_prefix(tiny.model, prompts) == prompt_length(prompts[0]) - 1


@torch.inference_mode()
def test_the_vision_tower_runs_once_and_is_left_as_it_was():
    tiny = tiny_models.paligemma()
    calls = []
    tiny.model.model.vision_tower.register_forward_hook(lambda *_: calls.append(1))
    list(generate_single(tiny.model, tiny.prompts(5), max_new_tokens=2))
    assert len(calls) == 1
    with pytest.raises(ZeroDivisionError), images_encoded_once(tiny.model):
        raise ZeroDivisionError
    plain(tiny.model, tiny.prompts(2))
    assert len(calls) == 3


def group(prompts: list[dict], **generation: object) -> Group:
    return Group("a_task", {"max_new_tokens": NEW, **generation}, prompts)


def test_the_window_rule_is_applied_to_each_image():
    """One task, two images: the second one's prompts are longer than the window of the model."""
    tiny = tiny_models.gemma3(window=36)
    short, long = tiny.prompts(4, lengths=(3, 5)), tiny.prompts(4, lengths=(20, 24))
    runner = Runner(tiny.model, share=True, chunk=None)
    got = [list(runner.run(group(prompts))) for prompts in (short, long, short)]
    assert (runner.work.prompts_packed, runner.work.prompts_grouped) == (8, 4)
    for tokens, prompts in zip(got, (short, long, short), strict=True):
        assert [t.tolist() for t in tokens] == [e.tokens.tolist() for e in plain(tiny.model, prompts)]


def test_out_of_memory_halves_the_chunk_and_goes_on():
    tiny = tiny_models.llava()
    prompts = tiny.prompts(12)
    expected = [e.tokens.tolist() for e in plain(tiny.model, prompts)]
    runner = Runner(tiny.model, share=True, chunk=None)
    list(runner.run(group(prompts[:3])))  # the self-check, with memory enough
    room, sizes = 40, []

    def small_memory(_: torch.nn.Module, __: tuple, inputs: dict) -> None:
        sizes.append(inputs["input_ids"].shape[1])
        if sizes[-1] > room:
            raise torch.OutOfMemoryError

    tiny.model.register_forward_pre_hook(small_memory, with_kwargs=True)
    assert [t.tolist() for t in runner.run(group(prompts))] == expected
    refused = [size for size in sizes if size > room]
    assert 1 <= len(refused) <= 2  # 12 prompts, then 6; and never again
    assert [t.tolist() for t in runner.run(group(prompts))] == expected
    assert [size for size in sizes if size > room] == refused
    room = 5  # not even one prompt fits
    with pytest.raises(torch.OutOfMemoryError):
        list(runner.run(group(prompts)))


def test_work_is_counted():
    tiny = tiny_models.llava()
    prompts = tiny.prompts(8)
    lengths = [prompt_length(p) for p in prompts]
    shared = common_prefix(tiny.model, prompts)
    runner = Runner(tiny.model, share=True, chunk=None)
    list(runner.run(group(prompts)))
    check = runner.work.computed_tokens - (shared + sum(n - shared for n in lengths))
    list(runner.run(group(prompts)))
    work = runner.work
    assert work.prompt_tokens == 2 * sum(lengths)
    assert work.prefix_tokens == 2 * 8 * shared
    assert work.saved_tokens == 2 * 7 * shared
    assert work.computed_tokens == work.prompt_tokens - work.saved_tokens + check
    shortest, longest = min(lengths), max(lengths)
    middle = sorted(lengths)[4]
    # Three prompts plain, the longest twice with other tokens, the prefix, and the three suffixes.
    assert check == (shortest + middle + longest) + 2 * longest + shared + (shortest + middle + longest - 3 * shared)
    assert (work.prompts_packed, work.prompts_grouped, work.prompts_single) == (16, 0, 0)


@pytest.mark.parametrize("share", [True, False])
def test_sampling_and_beams_run_alone_and_are_honoured(share):
    tiny = tiny_models.llava()
    prompts = tiny.prompts(3)
    runner = Runner(tiny.model, share=share, chunk=None)
    beams = [t.tolist() for t in runner.run(group(prompts, num_beams=3, temperature=0, until=["x"]))]
    expected = [e.tolist() for p in prompts for e in tiny.model.generate(**p, max_new_tokens=NEW, num_beams=3)]
    assert beams == [e[prompt_length(p) :] for e, p in zip(expected, prompts, strict=True)]
    assert beams != [e.tokens.tolist() for e in plain(tiny.model, prompts)]

    torch.manual_seed(0)
    sampled = [t.tolist() for t in runner.run(group(prompts, temperature=5.0, do_sample=True, top_p=None))]
    torch.manual_seed(0)
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 5.0, "top_k": None}
    expected = [tiny.model.generate(**p, **options)[0, prompt_length(p) :].tolist() for p in prompts]
    assert sampled == expected
    assert runner.work.prompts_single == 6


def test_generation_kwargs_of_lmms_eval():
    assert generation_options(
        {"max_new_tokens": 4, "temperature": 0, "do_sample": False, "until": [], "num_beams": 1}
    ) == {
        "max_new_tokens": 4,
        "num_beams": 1,
        "do_sample": False,
    }
    assert generation_options({"temperature": 0.7})["do_sample"] is True
    # What --gen_kwargs temperature=0.7 makes of a task whose YAML says do_sample: false.
    assert generation_options({"temperature": 0.7, "do_sample": False})["do_sample"] is True
    assert generation_options({"do_sample": True})["do_sample"] is True
    assert generation_options({})["do_sample"] is False
    assert generation_options({"do_sample": True, "temperature": 0})["do_sample"] is False
    assert generation_options({"repetition_penalty": 1.2})["repetition_penalty"] == 1.2


def test_positions_that_depend_on_the_length_are_not_shared():
    """Dynamic rotary positions: a prompt beyond the trained length turns all its positions, the image's too."""
    tiny = tiny_models.llava()
    config = tiny.model.config.text_config
    config.max_position_embeddings = 40
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    rotary = type(tiny.model.model.language_model.rotary_emb)
    tiny.model.model.language_model.rotary_emb = rotary(config)
    short, long = tiny.prompts(4, lengths=(3, 6)), tiny.prompts(4, lengths=(30, 40))
    with torch.inference_mode():
        prefix = compute_prefix(tiny.model, long, common_prefix(tiny.model, long))
        shared = generate_packed(tiny.model, long, prefix, keep_logits=True, max_new_tokens=1)
        alone = plain(tiny.model, long, max_new_tokens=1)
        assert max(float((a.logits - b.logits).abs().max()) for a, b in zip(shared, alone, strict=True)) > 0.05
    runner = Runner(tiny.model, share=True, chunk=None)
    for prompts in (short, long, short):
        plain(tiny.model, short[:1])  # transformers itself remembers the longest prompt, until a short one comes
        got = [t.tolist() for t in runner.run(group(prompts))]
        plain(tiny.model, short[:1])
        assert got == [e.tokens.tolist() for e in plain(tiny.model, prompts)]
    assert (runner.work.prompts_packed, runner.work.prompts_single) == (8, 4)


def test_a_static_cache_in_the_checkpoint_does_no_harm():
    tiny = tiny_models.llava()
    prompts = tiny.prompts(4)
    expected = [e.tokens.tolist() for e in plain(tiny.model, prompts)]
    tiny.model.generation_config.cache_implementation = "static"
    assert [t.tolist() for t in Runner(tiny.model, share=True, chunk=None).run(group(prompts))] == expected


@torch.inference_mode()
def test_half_precision_is_recognised_as_exact_and_paligemma_still_is_not():
    for name, mode in (("llava", "packed"), ("gemma3", "packed"), ("qwen2_5_vl", "packed"), ("paligemma", "single")):
        tiny = getattr(tiny_models, name)()
        tiny.model.to(torch.bfloat16)
        prompts = [
            {k: v.bfloat16() if v.is_floating_point() else v for k, v in prompt.items()} for prompt in tiny.prompts()
        ]
        choice = choose_mode(tiny.model, prompts, NEW)
        assert choice.mode == mode, (name, choice.reason)
