"""Fine-tuning on one rank: settings, loss against plain torch, interruption and resumption, errors of the command."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from lmms_eval_templates.training.collator import Collator
from lmms_eval_templates.training.config import Config, load_config
from lmms_eval_templates.training.finetune import finetune, main
from safetensors.torch import load_file
from training_data import LEARNT, read

from lmms_eval_templates import TemplateError

TRAINING = Path(__file__).parents[1] / "training"
CONFIGS = sorted((TRAINING / "configs").glob("*.yaml"))
PEFT = pytest.importorskip("peft")


# Settings


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs(path):
    config = load_config(path)
    assert path.read_text().splitlines()[0].endswith(f"-m lmms_eval_templates.training.finetune {path.name}")
    if path.stem == "tiny_cpu":
        return
    # the paper, section 4.1
    assert (config.global_batch_size, config.learning_rate, config.lr_scheduler) == (128, 2e-5, "cosine")
    assert (config.warmup_ratio, config.epochs, config.dtype) == (0.03, 1, "bf16")
    assert json.loads(Path(config.deepspeed_file).read_text())["zero_optimization"]["stage"] == 3
    for devices in (1, 2, 4, 8, 16):
        assert config.accumulation(devices) * devices * config.batch_size_per_device == 128
    if not path.stem.endswith("_original"):
        original = load_config(path.with_stem(path.stem + "_original"))
        changed = {f.name for f in dataclasses.fields(Config) if getattr(config, f.name) != getattr(original, f.name)}
        assert changed == {"data", "output"}


def test_every_shipped_file_is_named_here():
    assert [path.stem for path in CONFIGS] == [
        *("llava_1.5_13b", "llava_1.5_13b_original", "llava_1.5_7b", "llava_1.5_7b_original", "tiny_cpu"),
    ]
    stages = {p.stem: json.loads(p.read_text())["zero_optimization"]["stage"] for p in TRAINING.glob("deepspeed/*")}
    assert stages == {"zero2": 2, "zero3": 3}


REQUIRED = {"model": "m", "data": "d", "image_folder": "i", "output": "o"}


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"learning_rates": 1}, ["unknown key 'learning_rates'; the nearest is 'learning_rate'"]),
        ({"lora_r": 1, "bf16": True}, ["'lora_r'; the nearest is 'lora_rank'", "unknown key 'bf16'"]),
        ({"epochs": "many"}, ["epochs: 'many' must be a number"]),
        ({"seed": 1.5}, ["seed: 1.5 must be int"]),
        ({"lora_rank": 0}, ["lora_rank: 0 must be 1 or more"]),
        ({"dtype": "fp16"}, ["dtype: 'fp16' must be bf16 or fp32"]),
        ({"missing_images": "ignore"}, ["must be error or skip"]),
    ],
)
def test_settings_that_cannot_be(tmp_path, settings, messages):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(REQUIRED | settings))
    with pytest.raises(TemplateError) as error:
        load_config(path)
    assert all(message in str(error.value) for message in messages)
    path.write_text(yaml.safe_dump(settings))
    with pytest.raises(TemplateError, match="image_folder is missing"):
        load_config(path)


def test_changes_on_the_command_line(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(REQUIRED))
    config = load_config(path, ["learning_rate=2e-4", "deepspeed=null", "data=other.json"])
    assert (config.learning_rate, config.deepspeed, config.data) == (2e-4, None, "other.json")
    with pytest.raises(TemplateError, match="must be key=value"):
        load_config(path, ["skip"])
    with pytest.raises(TemplateError, match=r"batch_size_per_device can be 1, 2, 4, 8, 16, 32, 64$"):
        load_config(path, ["batch_size_per_device=48"]).accumulation(2)


# Records and labels


@pytest.fixture
def config(mix, tiny_llava):
    return Config(
        **{"model": str(tiny_llava), "data": "mix.json", "image_folder": "images", "output": "out", "epochs": 2.0},
        **{"global_batch_size": 4, "batch_size_per_device": 2, "learning_rate": 1e-2, "lora_rank": 4, "lora_alpha": 8},
        **{"lora_dropout": 0.1, "max_length": 512, "dtype": "fp32", "gradient_checkpointing": True, "deepspeed": None},
        **{"save_steps": 2, "logging_steps": 1, "dataloader_workers": 0, "device": "cpu", "warmup_ratio": 0.0},
    )


def log_of(output="out"):
    last = max(Path(output).glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return [entry for entry in json.loads((last / "trainer_state.json").read_text())["log_history"] if "loss" in entry]


def as_yaml(config, path="c.yaml"):
    Path(path).write_text(yaml.safe_dump(dataclasses.asdict(config)))
    return path


def test_loss_and_trained_layers(config, mix, processor):
    from transformers import AutoModelForImageTextToText

    config = dataclasses.replace(config, global_batch_size=16, epochs=4.0)
    adapter = finetune(config)
    losses = [entry["loss"] for entry in log_of()]
    # Before the first step LoRA changes nothing: mean over all assistant tokens of the plain model's losses, one
    # record at a time in plain torch.
    model = AutoModelForImageTextToText.from_pretrained(config.model).eval()
    total, count = 0.0, 0
    for record in map(read(mix).__getitem__, range(16)):
        batch = Collator(processor, 512)([record])
        labels = batch.pop("labels")[0, 1:]
        with torch.no_grad():
            logits = model(**batch).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
        count += int((labels != -100).sum())
    assert losses[0] == pytest.approx(total / count, rel=1e-4)
    assert losses[-1] < losses[0] - 0.5
    names = load_file(adapter / "adapter_model.safetensors")
    assert len(names) == 2 * 7 * 2  # layers x projections x (A, B)
    assert all(".language_model." in name for name in names)


def run_until_checkpoint(number, config):
    """Starts the command in a process of its own; returns it once a checkpoint is complete."""
    command = [sys.executable, "-m", "lmms_eval_templates.training.finetune", as_yaml(config)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    log = open("log.txt", "w")  # noqa: SIM115
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    while not (Path(config.output) / f"checkpoint-{number}" / "complete.json").exists():
        assert process.poll() is None, Path("log.txt").read_text()
        time.sleep(0.005)
    return process


def test_a_killed_run_ends_as_if_it_had_not_been(config, capsys):
    config = dataclasses.replace(config, epochs=8.0)
    whole = finetune(dataclasses.replace(config, output="whole"))
    process = run_until_checkpoint(4, config)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not Path("out/adapter").exists()
    newest = max(Path("out").glob("checkpoint-*/complete.json"), key=lambda p: int(p.parts[1].split("-")[1])).parent
    shutil.copytree(newest, "out/checkpoint-31")  # as if the machine had died while writing
    weights = Path("out/checkpoint-31/adapter_model.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    Path("out/checkpoint-30").mkdir(exist_ok=True)
    with pytest.warns(UserWarning, match=r"passing over .*checkpoint-3[01]"):
        assert main(["c.yaml"]) == 0
    assert f"going on from {newest}" in capsys.readouterr().out
    name = "adapter_model.safetensors"
    assert Path("out/adapter", name).read_bytes() == (whole / name).read_bytes()
    with pytest.raises(TemplateError, match=r"run with other settings:\n  learning_rate: 0.01 -> 0.02\n"):
        finetune(dataclasses.replace(config, learning_rate=0.02))


def test_ctrl_c_saves(config):
    config = dataclasses.replace(config, epochs=500.0, save_steps=10)
    process = run_until_checkpoint(10, config)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130, Path("log.txt").read_text()
    assert "run the same command again" in Path("log.txt").read_text()
    checkpoints = [int(path.parent.name.split("-")[1]) for path in Path("out").glob("checkpoint-*/complete.json")]
    assert f"'epoch': '{max(checkpoints) / 4:g}'" in Path("log.txt").read_text().rsplit("'loss'", 1)[1]
    assert not Path("out/adapter").exists()


def test_images_that_cannot_be_read_are_treated_like_missing_ones(mix, monkeypatch):
    from PIL import Image, ImageFile

    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)  # as importing lmms-eval does
    data = json.loads((mix / "mix.json").read_text())
    whole, folder = mix / "images" / "drawn" / "8.png", mix / "images"
    names = {"cut.png": 9, "cut.jpg": 10, "trailing.jpg": 12, "cut.webp": 13, "text.png": 14}
    for name in names:
        if not name.startswith("text"):
            Image.open(whole).resize((300, 300)).rotate(9).save(folder / name)
        if name.startswith("cut"):
            (folder / name).write_bytes((folder / name).read_bytes()[:-100])
    (folder / "text.png").write_text("no picture")
    with (folder / "trailing.jpg").open("ab") as file:
        file.write(b"\0\0")
    for name, number in names.items():
        data[number]["image"] = name
    (mix / "mix.json").write_text(json.dumps(data))
    with pytest.raises(TemplateError, match=r"4 image files .* cannot be read .*\n  cut.png \(cannot be read: .*"):
        read(mix)
    assert (mix / "missing.txt").read_text() == "cut.png\ncut.jpg\ncut.webp\ntext.png\n"
    records = read(mix, "skip")
    assert [line.split(" (")[0] for line in records.left_out] == [
        f"record {number}: no image {name}" for name, number in names.items() if name != "trailing.jpg"
    ]
    assert [len(records[number]["images"]) for number in range(len(records))].count(1) == 8


def test_records_that_max_length_spoils_are_found_before_training(config, capsys):
    config = dataclasses.replace(config, max_length=60, dataloader_workers=2, epochs=1.0, save_steps=1)
    data = json.loads(Path("mix.json").read_text())
    question = {"from": "human", "value": "red " * 100}
    data[11] = {"id": "long", "conversations": [question, LEARNT]}
    data[13] = {"id": "shown", "image": data[13]["image"], "conversations": [question, LEARNT]}
    Path("mix.json").write_text(json.dumps(data))
    assert main([as_yaml(config)]) == 0
    assert "2 records are left out, listed in out/left_out.txt" in capsys.readouterr().out
    lines = Path("out/left_out.txt").read_text().splitlines()
    assert [re.sub(r" at byte [\d,]+ of mix.json", "", line) for line in lines] == [
        f"record {name!r}: no answer within max_length 60" for name in ("long", "shown")
    ]
    assert json.loads(Path("out/run.json").read_text())["records"] == 14
    assert all(weight.isfinite().all() for weight in load_file("out/adapter/adapter_model.safetensors").values())
    two = [data[0]["image"], data[1]["image"]]
    data[12] = {"id": "two", "image": two, "conversations": [{"from": "human", "value": "red"}, LEARNT]}
    Path("mix.json").write_text(json.dumps(data))
    assert main(["c.yaml", "output=other"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(r"error on rank 0: record 'two' at byte [\d,]+ of mix.json: its image tokens do not fit", error)
    assert not list(Path("other").iterdir())
    Path("mix.json").write_text(json.dumps([data[11]]))
    assert main(["c.yaml", "output=other"]) == 2
    assert "no record left to train on: no answer within max_length 60" in capsys.readouterr().err


def test_an_error_in_a_data_worker_is_one_line(config, capsys, monkeypatch):
    import importlib

    module = importlib.import_module("lmms_eval_templates.training.finetune")
    load = module.lora_model

    def load_while_an_image_goes(*arguments):
        Path("images/drawn/12.png").unlink()
        return load(*arguments)

    monkeypatch.setattr(module, "lora_model", load_while_an_image_goes)
    assert main([as_yaml(config), "dataloader_workers=2"]) == 2
    error = capsys.readouterr().err
    (line,) = (line for line in error.splitlines() if "error on rank" in line)
    assert "finetune: error on rank 0: cannot read image drawn/12.png in images: " in line
    assert "Traceback" not in error


def test_errors_of_the_command(config, capsys):
    Path("images/drawn/0.png").unlink()
    assert main([as_yaml(config)]) == 2
    assert "drawn/0.png" in capsys.readouterr().err
    assert main(["c.yaml", "lora_targets=nothing"]) == 2
    assert main(["c.yaml", "--missing-images", "skip", "lora_targets=nothing"]) == 2
    assert "lora_targets" in capsys.readouterr().err
    assert main(["nowhere.yaml"]) == 2
    for change, message in (
        ("lr_scheduler=cosin", "the Trainer refuses these settings: cosin"),
        ("deepspeed=zero4", "shipped are zero2, zero3"),
        ("model=./nowhere", "cannot load './nowhere'"),
        ("data=nowhere.json", "no file nowhere.json"),
    ):
        assert main(["c.yaml", "--missing-images", "skip", change]) == 2
        assert message in capsys.readouterr().err
