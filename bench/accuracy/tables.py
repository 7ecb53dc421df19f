"""Turns the answers of bench/accuracy/run into tables (bench/common/result_table.py). Only rows with every answer are shown."""
import functools
import json
import math
import pathlib
import random
import re
import statistics
import sys

import plan

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import result_table  # noqa: E402

WEIGHTS = "bundled"  # what the answers rest on (result_table.WEIGHTS); empty for another model
SKILLS = ["what", "colour", "motion", "order", "count", "presence", "card", "group", "compare", "when", "none", "text", "chat", "image", "binding", "caption"]


SPARSE_TABLES = ("attention", "harder", "small budget", "sparse questions", "published sizes", "tight", "momo", "momo k")
# tables whose rows are also compared with one of them, not only with dense attention
VERSUS = {"attention": "MMInference", "small budget": "MMInference"}
BY_PROMPT = ("harder",)  # tables whose intervals are by prompt
TOGETHER = "together"  # ends the name of a file with the answers of several policies


def slug(text):
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def wilson(right, count):
    if not count:
        return 0.0, 1.0
    z, share = 1.96, right / count
    centre, spread = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, (centre - spread) / (1 + z * z / count)), min(1.0, (centre + spread) / (1 + z * z / count))


def mcnemar(one, two):
    """Exact two-sided probability that so uneven a split is chance."""
    n = one + two
    tail = sum(math.comb(n, i) for i in range(min(one, two) + 1)) / 2 ** n if n else 0.5
    return min(1.0, 2 * tail)


@functools.lru_cache(maxsize=None)
def video_of(data):
    """Question -> number of its video, text or mixed prompt, of a set's file."""
    numbers, found = {}, {}
    for line in open(data):
        item = json.loads(line)
        key = json.dumps([item.get("video"), item.get("image"), item.get("parts"), item.get("end")])
        found[item["id"]] = numbers.setdefault(key, len(numbers))
    return found


class Answers:
    """Every answer of a row, by id, and whether none is missing."""

    def __init__(self, out, sets, row):
        name, control = slug(row.policy), "-wrong" if row.wrong_video else ""
        ending = re.compile(rf"part-[0-9a-f]{{8}}-\d+-\d+{control}-({re.escape(name)}|{TOGETHER})\.jsonl")
        self.by_id = {}
        for path in (out / "answers" / row.set).glob("part-*.jsonl"):
            if not ending.fullmatch(path.name) or (not control and "-wrong-" in path.name):
                continue
            for line in open(path):
                if not line.endswith("\n"):  # still being written
                    continue
                record = json.loads(line)
                of_others = path.stem.endswith(f"-{TOGETHER}") and record.get("policy") != row.policy
                if "id" in record and not of_others:  # the first line names the format
                    self.by_id[record["id"]] = record
        self.videos = video_of(sets / row.set / "DATA.jsonl")
        self.complete = self.by_id.keys() == self.videos.keys()

    def of(self, keep=lambda r: True):
        return [r for r in self.by_id.values() if keep(r)]


def share(records):
    right = sum(r["score"] for r in records)
    return right / len(records) if records else float("nan")


def cell(records):
    if not records:
        return ""
    low, high = wilson(sum(r["score"] for r in records), len(records))
    return f"{100 * share(records):.1f} ({100 * low:.1f}–{100 * high:.1f})"


def by_prompt(found, rounds=2000):
    """% right, with a 95 % interval by prompt: prompts are drawn anew, with all their questions. Of a single prompt there is none."""
    prompts = {}
    for i, record in found.by_id.items():
        right, count = prompts.get(found.videos[i], (0, 0))
        prompts[found.videos[i]] = right + record["score"], count + 1
    pairs, dice = list(prompts.values()), random.Random(1)

    def right(drawn):
        return 100 * sum(one for one, _ in drawn) / sum(count for _, count in drawn)
    if len(pairs) < 2:
        return f"{right(pairs):.1f}"
    drawn = sorted(right(dice.choices(pairs, k=len(pairs))) for _ in range(rounds))
    return f"{right(pairs):.1f} ({drawn[rounds // 40]:.1f}–{drawn[-rounds // 40]:.1f})"


def named(name, title, head, rows):
    """A table and the name of its file; nothing without rows."""
    return (slug(name), result_table.measured(title, head, rows, WEIGHTS)) if rows else None


def skill_table(read):
    """Skills by length, next to the scores with the wrong video."""
    def records(table, kinds, length, skill):
        return [r for k in kinds if (found := read(table, f"{k}-{length}")) for r in found.of(lambda r: r["type"] == skill)]

    rows = []
    for skill in SKILLS:
        kinds = ["caption"] if skill == "caption" else ["skills", "moments"]
        found = [records("skills", kinds, n, skill) for n in (64, 256, 1024)]
        if any(found):
            guessed = records("chance", kinds, 64, skill)
            rows.append([skill + (" (F1 of events)" if skill == "caption" else ""), f"{100 * share(guessed):.0f}" if guessed else "",
                         *map(cell, found), " / ".join(str(len(f)) for f in found)])
    return named("skills", "Skills, dense attention, right answers in %", ["skill", "chance", "64 frames", "256 frames", "1024 frames", "answers"], rows)


def picture_table(read, sets):
    """Single pictures by kind of question."""
    found, chance = read("pictures", "pictures"), read("chance", "pictures")
    if not found:
        return None
    kinds = {}
    for line in open(sets / "pictures" / "DATA.jsonl"):
        item = json.loads(line)
        kinds.setdefault(item["kind"], []).append(item["id"])
    kinds["all"] = [i for ids in kinds.values() for i in ids]
    rows = [[kind, f"{100 * share([chance.by_id[i] for i in ids]):.0f}" if chance else "", cell([found.by_id[i] for i in ids]), str(len(ids))]
            for kind, ids in kinds.items()]
    return named("pictures", "Single pictures, dense attention, right answers in %", ["kind of question", "chance", "right, %", "answers"], rows)


def needle_table(read):
    rows = []
    for n in (64, 128, 256, 512, 1024, 2048, 4096):
        found = read("needles", f"needle-{n}")
        if found:
            records = found.of()
            rows.append([str(n), str(len(records)), cell(records), f"{statistics.median(r['prefill'] for r in records if r.get('prefill')):.2f}"])
    return named("needles", "Needles, dense attention", ["frames", "answers", "right, %", "prefill, s"], rows)


class Comparison:
    """Answers that are right only with one of two policies, of one set or added up over several."""

    def __init__(self):
        self.lost, self.won, self.worse, self.better = 0, 0, 0, 0

    def add(self, found, other):
        by_video = {}
        for i, record in found.by_id.items():
            difference = record["score"] - other.by_id[i]["score"]
            self.lost += difference < 0
            self.won += difference > 0
            by_video[found.videos[i]] = by_video.get(found.videos[i], 0) + difference
        self.worse += sum(d < 0 for d in by_video.values())
        self.better += sum(d > 0 for d in by_video.values())
        return self

    def cells(self, by_video=False):
        out = [f"{self.lost} / {self.won}", f"{mcnemar(self.lost, self.won):.2g}"]
        return [*out, f"{self.worse} / {self.better}", f"{mcnemar(self.worse, self.better):.2g}"] if by_video else out


AGAINST = ["lost / won against MMInference", "p", "videos worse / better", "p"]


def all_sets_table(read, table, sets, names):
    """The answers of several sets added up: policies that are complete in all of them."""
    if len(sets) < 2:
        return None
    rows = []
    for name, policy in names.items():
        found = [(read(table, s, policy), read(table, s), read(table, s, names[VERSUS[table]])) for s in sets]
        if not all(one and dense and other for one, dense, other in found):
            continue
        dense, other = Comparison(), Comparison()
        for one, full, best in found:
            dense.add(one, full)
            other.add(one, best)
        records = [r for one, _, _ in found for r in one.of()]
        shares = [statistics.mean(r["share"] for r in one.of() if r.get("prefill")) for one, _, _ in found]
        rows.append([name, str(len(records)), cell(records), *dense.cells(), *other.cells(by_video=True),
                     "–".join(dict.fromkeys(f"{100 * share:.0f}" for share in (min(shares), max(shares))))])
    return named(f"{table}-all", f"{table}: {', '.join(sets)} together",
                 ["policy", "answers", "right, %", "lost / won against dense", "p", *AGAINST, "attention FLOPs, %"], rows)


def kind_table(read, table, set_name, names, sets):
    """Answers lost by kind of question, where a set has several: which of them a policy cannot do."""
    kinds = {}
    for line in open(sets / set_name / "DATA.jsonl"):
        item = json.loads(line)
        kinds.setdefault(item.get("kind", item["type"]), []).append(item["id"])
    rows = []
    for name, policy in names.items():
        found = read(table, set_name, policy)
        if found and len(kinds) > 1:
            rows.append([name, *(f"{sum(found.by_id[i]['score'] for i in ids):g} of {len(ids)}" for ids in kinds.values())])
    return named(f"{table}-{set_name}-kinds", f"{table}: {set_name}: right by kind of question", ["policy", *kinds], rows) if len(rows) > 1 else None


def policy_table(read, table, set_name, names, recalls):
    """A line per policy: accuracy, pairs lost and won against dense (and against MMInference), cost."""
    dense = read("attention", set_name) or read("harder", set_name) or read("retention", set_name)
    other = read(table, set_name, names[VERSUS[table]]) if table in VERSUS else None
    by_video = table != "attention"
    rows = []
    for name, policy in names.items():
        found = read(table, set_name, policy)
        if not found:
            continue
        records = found.of()
        first = [r for r in records if r.get("prefill")]
        line = [name, str(len(records)), by_prompt(found) if table in BY_PROMPT else cell(records), *(Comparison().add(found, dense) if dense else Comparison()).cells(),
                *(Comparison().add(found, other).cells(by_video) if other else []),
                f"{100 * statistics.mean(r['share'] for r in first):.0f}" if first else ""]
        if table in SPARSE_TABLES:
            recall, error, _, seconds, index = recalls.get((set_name, policy), ["100", "0", "", "100", ""] if policy == plan.DENSE else [""] * 5)
            rows.append([*line, recall, error, seconds, index])
        else:
            rows.append([*line, f"{statistics.median(r['prefill'] for r in first):.2f}" if first else "",
                         f"{statistics.mean(r['row_bytes'] for r in first) / 2**20:.1f}" if first else ""])
    if not rows:
        return None
    tokens = statistics.median(r["tokens"] for r in dense.of() if r.get("prefill")) if dense else 0
    return named(
        f"{table}-{set_name}", f"{table}: {set_name}, {tokens:.0f} tokens",
        ["policy", "answers", "right, %", "lost / won against dense", "p", *((AGAINST if by_video else AGAINST[:2]) if other else []), "attention FLOPs, %",
         *(["recall, %", "output error, %", "attention time, %", "of it index, %"] if table in SPARSE_TABLES else ["prefill, s", "rows, MiB"])], rows)


class AboutVideo:
    """The answers of a row that rest on frames of a video: neither small talk nor facts in text, nor pictures, which keep all their tokens."""

    def __init__(self, found):
        self.by_id = {i: r for i, r in found.by_id.items() if r["type"] not in ("chat", "text", "image")}
        self.videos = {i: found.videos[i] for i in self.by_id}


def kept_of_accuracy(found, whole, rounds=2000):
    """% of another policy's right answers, with a 95 % interval by prompt: videos are drawn anew, with all their questions."""
    videos = {}
    for i, record in found.by_id.items():
        own, other = videos.get(found.videos[i], (0, 0))
        videos[found.videos[i]] = own + record["score"], other + whole.by_id[i]["score"]
    pairs, dice = list(videos.values()), random.Random(1)

    def ratio(drawn):
        return 100 * sum(own for own, _ in drawn) / max(1e-9, sum(other for _, other in drawn))
    drawn = sorted(ratio(dice.choices(pairs, k=len(pairs))) for _ in range(rounds))
    return f"{ratio(pairs):.1f} ({drawn[rounds // 40]:.1f}–{drawn[-rounds // 40]:.1f})"


def tokens_table(read, set_name):
    """Tokens that the decoder never sees, rows that it forgets again, and controls: answers, bytes and time."""
    read_all, rows = read("tokens", set_name), []
    whole = AboutVideo(read_all) if read_all else None
    for name, policy in ({"all": plan.DENSE} | plan.BEFORE | plan.AFTER | plan.FEWER).items() if whole else ():
        if not (answers := read("tokens", set_name, policy)):
            continue
        found = AboutVideo(answers)
        records = list(found.by_id.values())
        first = [r for r in records if r.get("prefill")]
        rows.append([name, str(len(records)), cell(records), kept_of_accuracy(found, whole), *Comparison().add(found, whole).cells(),
                     f"{statistics.mean(r['tokens'] for r in first):,.0f}", f"{statistics.mean(r['row_bytes'] for r in first) / 2**20:.2f}",
                     f"{statistics.median(r['prefill'] for r in first):.2f}"])
    videos = len(set(whole.videos.values())) if whole else 0
    return named(f"tokens-{set_name}", f"{set_name.partition('-')[2]} frames, {videos} videos", [
        "policy", "answers", "right, %", "of all tokens' right answers, %", "lost / won", "p", "tokens", "rows, MiB", "prefill, s"], rows)


def presets_table(read, table, sets, names):
    """What combinations of policies cost in answers and what they save, of every set a row each; the first is what the others are compared with."""
    rows = []
    for set_name in sets:
        exact = read(table, set_name, next(iter(names.values())))
        for name, policy in names.items() if exact else ():
            if not (found := read(table, set_name, policy)):
                continue
            first = [r for r in found.of() if r.get("prefill")]
            rows.append([name, plan.set_title(set_name), str(len(found.by_id)), cell(found.of()), kept_of_accuracy(found, exact),
                         *Comparison().add(found, exact).cells(), f"{statistics.mean(r['tokens'] for r in first):,.0f}",
                         f"{100 * statistics.mean(r['share'] for r in first):.0f}", f"{statistics.mean(r['row_bytes'] for r in first) / 2**20:.2f}"])
    return named(table, table, ["preset", "set", "answers", "right, %", "of exact's right answers, %", "lost / won", "p", "tokens", "attention FLOPs, %", "rows, MiB"], rows)


def read_recalls(out):
    """(set, policy) -> (recall, output error, FLOPs, time, time of the index), from the reports of kinora eval --recall."""
    found = {}
    names = {slug(heads) or "model": f" ({heads})" if heads else "" for heads in plan.HEADS}
    for path in out.glob("recall-*.md"):
        inside = False
        set_name, _, of = path.stem.removeprefix("recall-").partition(".")
        heads = names.get(of.rpartition("-")[0], "")
        for line in path.read_text().splitlines():
            inside = line.startswith("## Attention captured") or (inside and not line.startswith("## "))
            cells = [c.strip() for c in line.strip("|").split("|")]
            if inside and len(cells) == 6 and cells[0] not in ("policy", "---"):
                found[set_name, cells[0] + heads] = cells[1:]
    return found


def recall_table(out, name):
    """What every policy captures, and the ablations of MOMO's settings."""
    recalls = read_recalls(out)
    small = {f"{label}, small budget": policy for label, policy in plan.SMALL.items()}
    rows = [[label, *recalls[name, policy]] for label, policy in (plan.ATTENTION | plan.PUBLISHED | plan.MATCHED | small | plan.TIGHT | plan.MOMO_SETTINGS
                                                                  | plan.MOMO_TILES | plan.MOMO_TRIM | plan.MOMO_RANK).items() if (name, policy) in recalls]
    return named(f"recall-{name}", f"Attention captured on the first videos of {name}",
                 ["policy", "recall, %", "output error, %", "attention FLOPs, %", "attention time, %", "of it index, %"], rows)


def report(out, sets, rows):
    """Every table that is complete, by name."""
    known = {}

    def read(table, set_name, policy=plan.DENSE):
        for row in rows:
            if row.set == set_name and row.policy == policy and (row.table == table or (policy == plan.DENSE and table != "chance")) \
                    and row.wrong_video == (table == "chance"):
                if row.key not in known:
                    known[row.key] = Answers(out, sets, row)
                return known[row.key] if known[row.key].complete else None
        return None

    recalls = read_recalls(out)
    parts = [skill_table(read), picture_table(read, sets), needle_table(read)]
    for table, names in (("attention", plan.both_ways(plan.ATTENTION | plan.MATCHED)), ("harder", plan.both_ways(plan.ATTENTION | plan.MATCHED)), ("small budget", plan.both_ways(plan.SMALL)),
                         ("published sizes", {"dense": plan.DENSE} | plan.both_ways(plan.PUBLISHED)), ("tight", plan.both_ways(plan.TIGHT)), ("momo", plan.MOMO_SETTINGS | plan.MOMO_TILES | plan.MOMO_TRIM),
                         ("momo k", plan.WIDER),
                         ("retention", {"all": plan.DENSE} | plan.RETENTION), ("by question", {"all": plan.DENSE} | plan.BY_QUESTION), ("groups", plan.GROUPS),
                         ("frames", {"all": plan.DENSE} | plan.LESS)):
        for set_name in dict.fromkeys(r.set for r in rows if r.table == table):
            parts.append(policy_table(read, table, set_name, names, recalls))
            parts.append(kind_table(read, table, set_name, names, sets) if table in VERSUS else None)
        if table in VERSUS:
            complete = [s for s in dict.fromkeys(r.set for r in rows if r.table == table) if read(table, s, names[VERSUS[table]])]
            parts.append(all_sets_table(read, table, complete, names))
    parts += [tokens_table(read, s) for s in dict.fromkeys(r.set for r in rows if r.table == "tokens")]
    for table, names in (("presets", plan.PRESETS | plan.EARLIER_FAST | plan.SHARES), ("candidates", {"exact": plan.DENSE} | plan.CANDIDATES)):
        parts.append(presets_table(read, table, dict.fromkeys(r.set for r in rows if r.table == table), names))
    parts += [recall_table(out, name) for name in plan.SETS]
    return dict(p for p in parts if p)


def write(out, tables):
    """OUT/tables.md to read, and OUT/tables/NAME.json for docs/results/import."""
    text = "\n".join(f"### {table.title}\n\n{table.markdown()}" for table in tables.values())
    (out / "tables.md").write_text(text)
    for name, table in tables.items():
        table.save(out / "tables" / f"{name}.json")
    return text
