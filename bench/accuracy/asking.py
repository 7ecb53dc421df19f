"""Asks a set with several policies through `kinora eval`, and sizes patterns to a share of the FLOPs: what comparisons of searched tables have in common."""
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import plan
import tables

TABLE = "kinora-attention.json"
SPARSE = plan.as_published(plan.MMINFERENCE)
# patterns of one kind for all heads, in proportion to a size
SINGLE = {"vertical-slash": lambda size: f"vertical-slash:verticals={size / 7:.0f},slashes={6 * size / 7:.0f}",
          "A-shape": lambda size: f"a-shape:sink=128,local={size:.0f}",
          "grid": lambda size: f"grid:local={size:.0f}"}


def by_prompt(text):
    return json.dumps([json.loads(text).get(key) for key in ("video", "image", "parts", "end")])


def prompts_of(data):
    """The lines of a set, prompt by prompt."""
    prompts = {}
    for line in open(data):
        prompts.setdefault(by_prompt(line), []).append(line)
    return list(prompts.values())


def link_model(model, folder):
    """A directory that shows a model without its table of the heads."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in pathlib.Path(model).resolve().iterdir():
        if path.name != TABLE and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)


def answers(a, model, name, data, policies, results):
    """Answers by policy; kept in a file."""
    results.parent.mkdir(parents=True, exist_ok=True)
    words = [word for policy in policies for word in ("--policy", policy)]
    done = subprocess.run([a.kinora, "eval", str(data), "-m", str(model), *words, "--results", str(results), "--threads", "1", "--device", "cpu",
                           "--cache", str(a.out / "cache")], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip()}")
    found = {policy: [] for policy in policies}
    for line in open(results):
        record = json.loads(line)
        if "id" in record:
            found[record["policy"]].append(record)
    return found


def share(records):
    return statistics.mean(r["share"] for r in records if r.get("prefill"))


def one_question(a, data, prompt):
    """A file with the first question of one prompt of a set."""
    one = a.out / f"one-{data.parent.name}-{prompt}.jsonl"
    line = json.loads(prompts_of(data)[prompt][0])
    for part in (line, *line.get("parts", ())):
        if "video" in part:
            part["video"] = str((data.parent / part["video"]).resolve())
    one.write_text(json.dumps(line) + "\n")
    return one


def share_of(a, model, data, policy, prompt, name):
    """What a policy computes of one prompt's FLOPs."""
    file = a.out / "sizes" / f"{data.parent.name}-{prompt}-{tables.slug(name)}.jsonl"
    return share(answers(a, model, policy, one_question(a, data, prompt), [policy], file)[policy])


def sized(a, data, make, wanted, prompt=0, close=0.006):
    """The pattern of this kind that computes about such a share of the FLOPs on one prompt of a set."""
    low, high = 250.0, 8000.0
    for _ in range(7):
        size = (low * high) ** 0.5
        policy = plan.as_published(plan.sparse(make(size)))
        found = share_of(a, a.model, data, policy, prompt, policy)
        if abs(found - wanted) < close:
            break
        low, high = (size, high) if found < wanted else (low, size)
    return make(size)


class Found:
    """Answers of several tables to one set, as tables.by_prompt wants them."""

    def __init__(self, many, videos):
        self.by_id = {(i, r["id"]): r for i, records in enumerate(many) for r in records}
        self.videos = {key: videos[key[1]] for key in self.by_id}
