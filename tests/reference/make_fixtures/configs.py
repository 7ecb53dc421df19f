"""Config files as versions of transformers write them, and the values that the classes of these versions read in them."""

import json
import os
import subprocess
import sys

from .paths import FIXTURES, SCRATCH, write_json

# The oldest that has a family of ours, those that leave out what is a class's default in their different ways, the one that is
# the truth for positions, and the newest.
VERSIONS = ["4.45.2", "4.49.0", "4.51.3", "4.57.6", "5.23.0"]
TRUTH = "4.57.6"


def python_of(version: str) -> str:
    """An environment with that version and no torch, which configs do not need."""
    place = SCRATCH.parent / f"transformers-{version}"
    python = place / "bin" / "python"
    if not (place / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"transformers=={version}"], check=True)
        (place / "installed").touch()
    return str(python)


def run(version: str, *files: str) -> dict:
    done = subprocess.run([python_of(version), "-m", "make_fixtures.saved_configs", *files], check=True, capture_output=True,
                          text=True, env=dict(os.environ, HF_HUB_OFFLINE="1"))
    made = json.loads(done.stdout)
    assert made["version"] == version, made["version"]
    return made["cases"]


def make() -> None:
    folder = FIXTURES / "configs"
    for version in VERSIONS:
        cases = run(version)
        write_json(folder / f"{version}.json", cases)
        if version >= TRUTH:
            continue
        # Later versions read the same in files of earlier ones.
        scratch = SCRATCH / "configs" / version
        scratch.mkdir(parents=True, exist_ok=True)
        for name, case in cases.items():
            (scratch / f"{name}.json").write_text(json.dumps(case["config"]))
        again = run(TRUTH, *(str(scratch / f"{name}.json") for name in cases))
        for name, case in cases.items():
            assert again[f"{name}.json"]["values"] == case["values"], f"{version} {name}: {again[name + '.json']}"
    faults = sorted(str(path) for path in (FIXTURES / "faults").glob("*-saved-by-*.json"))
    write_json(folder / "faults.json", run(TRUTH, *faults))
