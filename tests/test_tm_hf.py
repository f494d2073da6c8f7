"""The class behind `--model tm_hf`: requests in, text out, and one clear error for each thing that can be wrong."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
import tiny_folders
import tiny_models
import torch
import transformers
from lmms_eval.api.instance import Instance
from PIL import Image

from lmms_eval_templates.models.hf import SharedPrefixHF, cut
from lmms_eval_templates.models.prompts import _DecodedOnce

QUESTIONS = ["What color is the circle ?", "Which shape ?", "How many squares are red ? (A) two (B) four", "Where ?"]
GENERATION = {"max_new_tokens": 4, "do_sample": False, "temperature": 0, "num_beams": 1, "until": []}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("models")
    return functools.cache(lambda family: tiny_folders.build(family, folder))


@pytest.fixture(scope="module")
def llava(folders: Callable[[str], Path]) -> Path:
    return folders("llava")


def drawing(seed: int, size: tuple[int, int] = (48, 48)) -> Image.Image:
    pixels = torch.randint(0, 256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.to(torch.uint8).numpy())


def user(*content: str | Image.Image) -> list[dict]:
    parts = [{"type": "text", "text": c} if isinstance(c, str) else {"type": "image", "url": c} for c in content]
    return [{"role": "user", "content": parts}]


def answers(model: SharedPrefixHF, conversations: list[list[dict]], **generation: object) -> list[str]:
    model.task_dict["a_task"] = {"test": conversations}
    requests = [
        Instance(
            "generate_until",
            ("", lambda messages: messages, {**GENERATION, **generation}, number, "a_task", "test"),
            0,
            {"task": "a_task", "doc_id": number, "repeats": 1},
        )
        for number in range(len(conversations))
    ]
    return [result.text for result in model.generate_until(requests)]


def plain(folder: Path, conversations: list[list[dict]], **options: object) -> list[str]:
    """transformers alone: chat template, processor, `generate`, decode."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)
    texts = []
    for messages in conversations:
        parts = messages[0]["content"]
        content = [{"type": "image", "image": p["url"]} if p["type"] == "image" else p for p in parts]
        inputs = processor.apply_chat_template(
            [{**messages[0], "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        output = model.generate(**inputs, max_new_tokens=4, do_sample=False, **options)
        texts.append(processor.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts


LAYOUTS = {
    "image first": [user(drawing(k // 4), QUESTIONS[k % 4]) for k in range(12)],
    "two images": [user(drawing(k // 4), drawing(7), QUESTIONS[k % 4]) for k in range(8)],
    "question first": [user(QUESTIONS[k % 4], drawing(k // 4)) for k in range(8)],
    "text only": [user(QUESTIONS[k % 4]) for k in range(8)],
    "mixed": [user(QUESTIONS[0]), user(drawing(1), QUESTIONS[1]), user(drawing(1), QUESTIONS[2]), user(QUESTIONS[3])],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_answers_are_those_of_transformers(folders, family, layout):
    conversations = LAYOUTS[layout]
    model = SharedPrefixHF(str(folders(family)), device="cpu")
    got = answers(model, conversations)
    assert got == plain(folders(family), conversations)
    assert len(set(got)) > len(got) / 3
    work = model._runner.work
    expected = {"question first": "single", "mixed": None}.get(layout, "packed")
    if expected:
        assert getattr(work, f"prompts_{expected}") == len(conversations)
    else:
        assert (work.prompts_single, work.prompts_packed) == (2, 2)


PROCESSORS = {
    "llava_next": "packed",
    "idefics2": "packed",
    "idefics3": "packed",
    "gemma3": "packed",
    "internvl": "packed",
    "qwen2_5_vl": "packed",
    "paligemma": "single",
}


@pytest.mark.parametrize("family", PROCESSORS)
def test_processors_that_cut_and_scale_images(folders, family):
    """Images of three sizes, which many processors turn into prefixes of three lengths."""
    sizes = [(48, 48), (80, 40), (40, 112)]
    conversations = [user(drawing(k // 4, sizes[k // 4]), QUESTIONS[k % 4]) for k in range(12)]
    model = SharedPrefixHF(str(folders(family)), device="cpu")
    assert answers(model, conversations) == plain(folders(family), conversations)
    assert getattr(model._runner.work, f"prompts_{PROCESSORS[family]}") == 12


def test_sharing_can_be_switched_off(llava):
    model = SharedPrefixHF(str(llava), device="cpu", share="off")
    conversations = LAYOUTS["image first"]
    assert answers(model, conversations) == plain(llava, conversations)
    assert model._runner.work.prompts_single == len(conversations)
    assert model._runner.work.saved_tokens == 0


def test_chunks_and_stop_strings(llava):
    conversations = LAYOUTS["image first"]
    free = plain(llava, conversations)
    model = SharedPrefixHF(str(llava), device="cpu", chunk=3)
    assert answers(model, conversations) == free
    stop = free[0].split()[1]
    assert answers(model, conversations, until=[stop]) == [text.split(stop)[0] for text in free]
    assert cut("one two three", ["three", "two"]) == "one "
    assert cut("one two", "") == "one two"
    assert cut("one two", None) == "one two"


def test_what_follows_the_end_is_not_part_of_an_answer(llava, tmp_path):
    """Here padding is an ordinary word, which decoding would show."""
    conversations = LAYOUTS["image first"]
    model = SharedPrefixHF(str(llava), device="cpu")
    tokens = model._tokenizer(plain(llava, conversations)[0], add_special_tokens=False)["input_ids"]
    folder = shutil.copytree(llava, tmp_path / "tiny")
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(
        json.dumps({**config, "eos_token_id": [2, tokens[1]], "pad_token_id": tokens[0]})
    )
    expected = plain(folder, conversations)
    assert expected != plain(llava, conversations)
    assert answers(SharedPrefixHF(str(folder), device="cpu"), conversations) == expected


def test_answers_come_as_they_are_asked_for(llava):
    """What --use_cache relies on: an image's answers are handed over before the next image is computed."""
    model = SharedPrefixHF(str(llava), device="cpu")
    model.task_dict["a_task"] = {"test": LAYOUTS["image first"]}
    requests = [
        Instance(
            "generate_until",
            ("", lambda m: m, GENERATION, n, "a_task", "test"),
            0,
            {"task": "a_task", "doc_id": n, "repeats": 1},
        )
        for n in range(12)
    ]
    results = model.generate_until(requests)
    assert len(results) == 12
    assert model._runner.work.prompt_tokens == 0
    next(iter(results))
    assert model._runner.work.prompts_packed == 4
    assert [r.text for r in results[8:]] == plain(llava, LAYOUTS["image first"][8:])
    assert model._runner.work.prompts_packed == 12
    assert results[0].token_counts.output_tokens == 4
    assert results[0].token_counts.input_tokens > 36  # an image of 36 tokens and some words


def test_a_chat_template_of_the_users(llava, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{% for p in m['content'] %}{% if p['type'] == 'image' %}<image>{% else %}"
        "shape {{ p['text'] }}{% endif %}{% endfor %}{% endfor %}"
    )
    conversations = LAYOUTS["image first"]
    model = SharedPrefixHF(str(llava), device="cpu", chat_template=str(template))
    got = answers(model, conversations)
    assert got != plain(llava, conversations)
    other = shutil.copytree(llava, tmp_path / "tiny")
    shutil.copy(template, other / "chat_template.jinja")
    assert got == plain(other, conversations)


def test_max_pixels_makes_images_smaller(folders):
    conversations = [user(drawing(0, (96, 96)), question) for question in QUESTIONS]
    tokens = []
    for options in ({}, {"max_pixels": 1024}):
        model = SharedPrefixHF(str(folders("qwen2_5_vl")), device="cpu", **options)
        answers(model, conversations)
        tokens.append(model._runner.work.prompt_tokens)
    # 96 x 96 pixels are 36 tokens of 16 x 16; at most 1,024 pixels are 4.
    assert tokens[0] - tokens[1] == len(QUESTIONS) * (36 - 4)


@pytest.fixture(scope="module")
def adapter(llava: Path) -> Path:
    import peft

    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_pretrained(llava)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    folder = llava.parent / "adapter"
    peft.get_peft_model(model, config).save_pretrained(folder)
    return folder


def test_an_adapter_is_applied(llava, adapter):
    import peft

    conversations = LAYOUTS["image first"]
    got = answers(SharedPrefixHF(str(llava), device="cpu", peft=str(adapter)), conversations)
    assert got != plain(llava, conversations)
    model = transformers.AutoModelForImageTextToText.from_pretrained(llava)
    merged = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
    folder = llava.parent / "merged"
    merged.save_pretrained(folder)
    transformers.AutoProcessor.from_pretrained(llava).save_pretrained(folder)
    assert got == plain(folder, conversations)


def test_images_are_decoded_once_for_neighbours():
    red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    rows = datasets.Dataset.from_dict({"image": [red, red, blue, red], "n": [0, 1, 2, 3]})
    rows = rows.cast_column("image", datasets.Image()).select([3, 0, 1, 2])
    documents = _DecodedOnce.of(rows)
    read = [documents[number] for number in range(4)]
    assert [d["n"] for d in read] == [3, 0, 1, 2]
    assert [d["image"].getpixel((0, 0)) for d in read] == [(255, 0, 0)] * 3 + [(0, 0, 255)]
    assert read[0]["image"] is read[1]["image"] is read[2]["image"]
    assert rows[0]["image"].size == (8, 8)  # the task's own dataset still decodes
    assert _DecodedOnce.of([1, 2]) == [1, 2]


@pytest.fixture(scope="module")
def not_vision(llava: Path) -> Path:
    folder = llava.parent / "llama"
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**tiny_models._TEXT)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pretrained is missing"),
        ({"pretrained": "TINY", "batchsize": 8}, "unknown model_args batchsize; known are pretrained, revision"),
        ({"pretrained": "no/such/folder"}, "pretrained=no/such/folder: .*no/such/folder"),
        ({"pretrained": "LLAMA"}, "a 'llama' model is no image-text-to-text model"),
        ({"pretrained": "TINY", "device": "toaster"}, "device=toaster: no such device"),
        ({"pretrained": "TINY", "dtype": "float33"}, "dtype=float33: must be auto"),
        ({"pretrained": "TINY", "dtype": "int64"}, "dtype=int64: must be auto"),
        ({"pretrained": "TINY", "share": "always"}, "share=always: must be auto or off"),
        ({"pretrained": "TINY", "chunk": 0}, "chunk=0: must be auto"),
        ({"pretrained": "TINY", "chunk": "many"}, "chunk=many: must be auto"),
        ({"pretrained": "TINY", "max_pixels": 4096}, "max_pixels=4096: CLIPImageProcessor\\w* has no such setting"),
        ({"pretrained": "TINY", "chat_template": "no_file"}, "chat_template=no_file: not a readable file"),
        ({"pretrained": "TINY", "attn_implementation": "magic"}, "pretrained=.*magic"),
        ({"pretrained": "TINY", "peft": "no_folder"}, "peft=no_folder: no adapter there"),
    ],
)
def test_bad_input_gets_one_clear_error(llava, not_vision, options, message):
    folders = {"TINY": str(llava), "LLAMA": str(not_vision)}
    options = {name: folders.get(value, value) for name, value in options.items()}
    with pytest.raises(SystemExit, match=message) as refusal:
        SharedPrefixHF(**options)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith("tm_hf: error: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(llava):
    with pytest.raises(SystemExit, match=r"device=cuda:1: .* finds no GPU here; give device=cpu"):
        SharedPrefixHF(str(llava), device="cuda:1")


def test_an_adapter_of_another_base(llava, adapter, tmp_path):
    other = shutil.copytree(adapter, tmp_path / "adapter")
    description = other / "adapter_config.json"
    config = json.loads(description.read_text())
    description.write_text(json.dumps({**config, "base_model_name_or_path": "org/other-model"}))
    with pytest.raises(SystemExit, match="trained on org/other-model, not on"):
        SharedPrefixHF(str(llava), device="cpu", peft=str(other))
    # The right name, but a model of another size under it.
    model = tiny_models.llava().model
    folder = tmp_path / "llava"
    model.save_pretrained(folder)
    transformers.AutoProcessor.from_pretrained(llava).save_pretrained(folder)
    with pytest.raises(SystemExit, match="does not fit the model"):
        SharedPrefixHF(str(folder), device="cpu", peft=str(adapter))
    # Modules that the model does not have.
    description.write_text(json.dumps({**config, "target_modules": ["no_such_proj"]}))
    with pytest.raises(SystemExit, match="does not fit the model"):
        SharedPrefixHF(str(llava), device="cpu", peft=str(other))
    description.write_text("{")
    with pytest.raises(SystemExit, match="is not the JSON of an adapter"):
        SharedPrefixHF(str(llava), device="cpu", peft=str(other))


def test_cut_weights_are_one_error(llava, adapter, tmp_path):
    broken = shutil.copytree(llava, tmp_path / Path(llava).name)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(SystemExit, match="tm_hf: error: pretrained="):
        SharedPrefixHF(str(broken), device="cpu")
    cut = shutil.copytree(adapter, tmp_path / "cut_adapter")
    (cut / "adapter_model.safetensors").write_bytes((cut / "adapter_model.safetensors").read_bytes()[:200])
    with pytest.raises(SystemExit, match="this adapter does not fit the model"):
        SharedPrefixHF(str(llava), device="cpu", peft=str(cut))


@pytest.mark.parametrize(
    "argument",
    [{"trust_remote_code": "off"}, {"dtype": 16}, {"dtype": "int8"}, {"peft": 1}, {"chunk": True}, {"device": "meta"}],
    ids=str,
)
def test_what_lmms_eval_made_of_an_argument_is_checked(llava, argument):
    ((name, value),) = argument.items()
    with pytest.raises(SystemExit, match=f"tm_hf: error: {name}={value}"):
        SharedPrefixHF(str(llava), **{"device": "cpu", **argument})


def test_lmms_eval_ends_with_the_error_before_data_loads(llava, tmp_path):
    command = [sys.executable, "-m", "lmms_eval", "--model", "tm_hf", "--tasks", "demo_tm_simple"]
    options = ["--model_args", f"pretrained={llava},device=cpu,shares=off"]
    result = subprocess.run(
        [*command, *options],
        cwd=tmp_path,  # in the repository's own folder Python would import the sources, not what is installed
        env={**os.environ, "TM_EMBEDDER": "none"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("tm_hf: error: unknown model_args shares; known are pretrained")
    assert "Building contexts" not in result.stderr + result.stdout


@pytest.mark.parametrize("method", ["loglikelihood", "generate_until_multi_round"])
def test_what_it_does_not_do(llava, method):
    with pytest.raises(SystemExit, match="tm_hf: error: it"):
        getattr(SharedPrefixHF(str(llava), device="cpu"), method)([])
