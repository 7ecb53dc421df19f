#!/usr/bin/env python3
"""Makes the table of published weights in docs/results out of what bench/real_text/run has written.

    bench/real_text/tables.py OUT SET… --model NAME --command "bench/real_text/run …" --date 2026-11-17 [--machine A] [--name coder]

Writes docs/results/data/real-text-SET.json, or real-text-NAME-SET.json. Intervals are by prompt: questions about one text are right
or wrong together.
"""
import argparse
import collections
import json
import pathlib
import random
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
import result_table  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parents[2] / "docs" / "results" / "data"


def interval(by_prompt):
    """The middle 95 % of means over prompts drawn again and again."""
    luck = random.Random("prompts")
    prompts = list(by_prompt.values())
    means = []
    for _ in range(4000):
        drawn = [one for _ in prompts for one in luck.choice(prompts)]
        means.append(sum(drawn) / len(drawn))
    means.sort()
    return means[100], means[-100]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def difference(scores, dense):
    """Points above dense attention on the same questions, with the same interval."""
    by_prompt = {prompt: [100 * (score - dense[prompt][key]) for key, score in ones.items()] for prompt, ones in scores.items()}
    low, high = interval(by_prompt)
    return f"{mean(one for ones in by_prompt.values() for one in ones):+.1f} ({low:+.0f} … {high:+.0f})"


def captured(report):
    """policy → recall, output error, attention FLOPs, attention time, from the last table of `kinora eval`'s report."""
    rows = {}
    for line in report.split("## Attention captured")[-1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and re.fullmatch(r"[\d.]+", cells[1]):
            rows[cells[0]] = cells[1:5]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--command", action="append", required=True)
    parser.add_argument("--date", required=True)
    parser.add_argument("--machine", default="A")
    parser.add_argument("--how", default="")
    parser.add_argument("--note", default="")
    parser.add_argument("--name", default="", help="of the model, in the name of the table")
    a = parser.parse_args()
    for name in a.sets:
        scores, texts = collections.defaultdict(lambda: collections.defaultdict(dict)), collections.defaultdict(dict)
        needs = collections.defaultdict(set)
        for line in (a.out / f"{name}.jsonl").read_text().splitlines():
            record = json.loads(line)
            if "policy" not in record:
                continue
            policy, key = record["policy"], record["id"]
            scores[policy][key.split("-")[0]][key] = record["score"]
            texts[policy][key] = record["answer"]
            needs[record["type"]].add(key)
        seen = captured((a.out / f"{name}.md").read_text())
        # A run that was stopped: only texts about which every policy answered everything.
        whole = [prompt for prompt, ones in scores["dense"].items() if all(scores[policy][prompt].keys() == ones.keys() for policy in list(scores))]
        scores = {policy: {prompt: by_prompt[prompt] for prompt in whole} for policy, by_prompt in scores.items()}
        asked = {key for ones in scores["dense"].values() for key in ones}
        kinds = sorted(needs) if len(needs) > 1 else []
        rows = []
        for policy in [*scores, *(policy for policy in seen if policy not in scores)]:
            recall, error, flops, time = seen.get(policy, ["100", "0", "100", "100"] if policy == "dense" else [""] * 4)
            right = [""] * (4 + len(kinds))
            if policy in scores:
                by_prompt = scores[policy]
                by_question = {key: score for ones in by_prompt.values() for key, score in ones.items()}
                low, high = interval({prompt: list(ones.values()) for prompt, ones in by_prompt.items()})
                same = sum(texts[policy][key] == texts["dense"][key] for key in asked)
                right = [f"{100 * mean(by_question.values()):.1f}", f"{100 * low:.0f} – {100 * high:.0f}",
                         "" if policy == "dense" else difference(by_prompt, scores["dense"]),
                         *(f"{100 * mean(by_question[key] for key in needs[kind] & asked):.0f}" for kind in kinds),
                         f"{100 * same / len(asked):.0f}"]
            rows.append([policy.removesuffix(";dense-below=0"), *right, recall, error, flops, time])
        kind, tokens = name.split("-")
        columns = ["attention", "right, %", "95 % interval, by prompt", "points above dense", *(f"{kind}, %" for kind in kinds),
                   "same text as dense, %", "attention held, %", "error of the output, %", "FLOPs, %", "attention time, %"]
        table = result_table.Table(
            title=f"Facts in real {kind}, {int(tokens):,} tokens, {a.model}", columns=columns,
            rows=rows, align="l" + "r" * (len(columns) - 1), command=a.command, machine=a.machine, date=a.date, weights="published",
            how=f"{len(asked)} questions about {len(whole)} texts" + (f"; {a.how}" if a.how else ""), note=a.note)
        path = DATA / f"real-text-{a.name + '-' * bool(a.name)}{name}.json"
        table.save(path)
        print(path)


if __name__ == "__main__":
    main()
