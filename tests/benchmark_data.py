"""Small copies of the five benchmarks, row by row with the columns, types and oddities of the originals."""

from __future__ import annotations

import io
from pathlib import Path

import datasets
import numpy as np
from PIL import Image

from lmms_eval_templates.plugin import tasks_path

STRING, INT = datasets.Value("string"), datasets.Value("int64")
PICTURE = datasets.Image()

BLINK_SUBTASKS = (
    *("Counting", "IQ_Test", "Object_Localization"),
    *("Relative_Depth", "Relative_Reflectance", "Spatial_Relation"),
)
TMA_SPLITS = tuple(
    f"random_{kind}_{what}"
    for kind, whats in {
        "2d": ("how_many", "what", "where", "what_attribute", "where_attribute", "what_distance", "where_distance"),
        "3d": ("how_many", "what", "where", "what_attribute", "where_attribute", "what_distance", "where_distance"),
        "sg": ("what_object", "what_attribute", "what_relation", "how_many", "where"),
    }.items()
    for what in whats
)


def picture(number: int, size: int = 24) -> dict:
    """A picture whose every pixel is (number, 100, 200), so that a test can tell which one arrived."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), (number % 256, 100, 200), np.uint8)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": f"{number}.png"}


def _write(rows: list[dict], features: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(rows, features=datasets.Features(features)).to_parquet(path)


def blink(folder: Path) -> None:
    """One config a subtask; answers in brackets; rows with more images, and a subtask that the paper leaves out."""
    features = {
        **dict.fromkeys(("idx", "question", "sub_task"), STRING),
        **{f"image_{i}": PICTURE for i in range(1, 5)},
        "choices": [STRING],
        **dict.fromkeys(("answer", "prompt", "explanation"), STRING),
    }
    for s, sub_task in enumerate((*BLINK_SUBTASKS, "Jigsaw")):
        rows = []
        for i in range(4):
            images = {f"image_{k}": picture(10 * s + i) if k == 1 or (k == 2 and i == 3) else None for k in range(1, 5)}
            choices = (
                ["A is closer", "B is closer"] if sub_task == "Relative_Depth" else ["zero", "one", "two", "three"]
            )
            rows.append(
                {
                    "idx": f"val_{sub_task}_{i}",
                    "question": f"{sub_task} question {i}?",
                    "sub_task": sub_task,
                    **images,
                    "choices": choices,
                    "answer": f"({'ABCD'[i % len(choices)]})",
                    "prompt": "not used",
                    "explanation": "",
                }
            )
        _write(rows, features, folder / sub_task / "val-00000-of-00001.parquet")
    configs = "".join(
        f"- config_name: {s}\n  data_files:\n  - split: val\n    path: {s}/val-*\n" for s in (*BLINK_SUBTASKS, "Jigsaw")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")


def mmbench(folder: Path) -> None:
    """Missing choices and hints are the string "nan"."""
    names = ("index", "question", "hint", "A", "B", "C", "D", "category", "source", "L2-category", "answer")
    features = {**dict.fromkeys(names, STRING), "image": PICTURE}
    rows = [
        {
            "index": str(100 + i),
            "question": f"Which one is {i}?",
            "hint": "nan" if i % 2 else f"The hint of {i}.",
            "A": f"a{i}",
            "B": f"b{i}",
            "C": "nan" if i == 2 else f"c{i}",
            "D": "nan" if i in (2, 3) else f"d{i}",
            "category": ("ocr", "color")[i % 2],
            "source": "s",
            "L2-category": "x",
            "answer": "ABCD"[i % 2],
            "image": picture(i),
        }
        for i in range(6)
    ]
    _write(rows, features, folder / "en" / "dev-00000-of-00001.parquet")
    configs = "- config_name: en\n  data_files:\n  - split: dev\n    path: en/dev-*\n"
    configs += "- config_name: cn\n  data_files:\n  - split: dev\n    path: en/dev-*\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")


def seedbench(folder: Path) -> None:
    """Lists of images: one for pictures, several for videos, and pictures with two."""
    names = (
        "question",
        "choice_a",
        "choice_b",
        "choice_c",
        "choice_d",
        "data_type",
        "question_id",
        "data_id",
        "answer",
    )
    features = {"image": [PICTURE], "question_type_id": INT, **dict.fromkeys(names, STRING)}
    rows = []
    for i in range(8):
        video, two = i in (1, 4), i == 6
        rows.append(
            {
                "image": [picture(10 * i + k) for k in range(8 if video else 2 if two else 1)],
                "question_type_id": 1 + i % 3,
                "question": f"<image>\nWhat is in picture {i}?",
                "choice_a": f"a{i}",
                "choice_b": f"b{i}",
                "choice_c": f"c{i}",
                "choice_d": f"d{i}",
                "data_type": "video" if video else "image",
                "question_id": str(1000 + i),
                "data_id": str(i),
                "answer": "ABCD"[i % 4],
            }
        )
    _write(rows, features, folder / "data" / "test-00000-of-00001.parquet")


def tma(folder: Path) -> None:
    """19 splits; the answer is the text of the right option; ids repeat from split to split."""
    features = {
        "id": STRING,
        "image": PICTURE,
        "question": STRING,
        "options": [STRING],
        "answer": STRING,
        "task_plan": STRING,
    }
    for s, split in enumerate(TMA_SPLITS):
        rows = [
            {
                "id": f"{i}",
                "image": picture(s),
                "question": f"{split}: how many in {i}?",
                "options": ["4", "3", "14", "13"],
                "answer": ("4", "3")[i],
                "task_plan": '{"question type": "how many"}',
            }
            for i in range(2)
        ]
        _write(rows, features, folder / "data" / f"{split}-00000-of-00001.parquet")
    files = "".join(f"  - split: {split}\n    path: data/{split}-*\n" for split in TMA_SPLITS)
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files:\n{files}---\n")


def mmmu(folder: Path) -> None:
    """Options are a list written as a string, up to 9; open questions and questions about two images are among them."""
    names = (
        "id",
        "question",
        "options",
        "explanation",
        "topic_difficulty",
        "question_type",
        "subfield",
        "img_type",
        "answer",
    )
    features = {**dict.fromkeys(names, STRING), **{f"image_{i}": PICTURE for i in range(1, 8)}}
    rows = []
    for i, (subject, kind, options, answer) in enumerate(
        [
            ("Accounting", "multiple-choice", ["$6", "$7", "it's 8"], "C"),
            ("Art_Theory", "multiple-choice", [f"option {k}" for k in range(9)], "I"),
            ("Accounting", "open", [], "42"),
            ("Math", "multiple-choice", ["x", "y"], "A"),
            ("Math", "multiple-choice", ["<image 2>", "<image 1>"], "B"),
        ]
    ):
        images = {f"image_{k}": picture(i) if k == 1 or (k == 2 and i == 4) else None for k in range(1, 8)}
        rows.append(
            {
                "id": f"validation_{subject}_{i}",
                "question": f"<image 1> Number {i}: what does <image 1> show in <image 1>?",
                "options": repr(options),
                "explanation": "",
                "topic_difficulty": "Easy",
                "question_type": kind,
                "subfield": "s",
                "img_type": "['Tables']",
                "answer": answer,
                **images,
            }
        )
    _write(rows, features, folder / "data" / "validation-00000-of-00001.parquet")
    _write(rows[:2], features, folder / "data" / "dev-00000-of-00001.parquet")


BENCHMARKS = {"blink": blink, "mmbench": mmbench, "seedbench": seedbench, "tma": tma, "mmmu": mmmu}


def write_benchmarks(folder: Path) -> None:
    """Writes all five, and in `tasks/` YAMLs that include the shipped ones and change only where the data lies."""
    (folder / "tasks").mkdir()
    for name, write in BENCHMARKS.items():
        write(folder / name)
        for variant in ("simple", "complex", "ood"):
            task = f"{name}_tm_{variant}"
            shipped = tasks_path() / name / f"{task}.yaml"
            text = f"task: {task}\ninclude: {shipped}\ndataset_path: {folder / name}\n"
            (folder / "tasks" / f"{task}.yaml").write_text(text)
