"""Where fixtures live and how they are written."""

import json
import os
import pathlib
import re

import numpy as np
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parents[3]
FIXTURES = ROOT / "tests" / "fixtures"
SCRATCH = ROOT / "build" / "reference"


def write_json(path: pathlib.Path, value, indent=1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    # Lists of numbers stay on one line.
    text = re.sub(r"\[[\s\d,.e-]+\]", lambda m: "[" + " ".join(m.group(0)[1:-1].split()) + "]", text)
    path.write_text(text + "\n", encoding="utf-8")


def write_tensors(path: pathlib.Path, tensors: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in sorted(tensors.items())}, str(path))
    path.chmod(0o644)


def link(path: pathlib.Path, target: pathlib.Path) -> None:
    """A relative symbolic link, as the download cache of Hugging Face leaves them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))
