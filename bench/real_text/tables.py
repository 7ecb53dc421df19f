#!/usr/bin/env python3
"""Makes the table of published weights in docs/results out of what bench/real_text/run has written.

    bench/real_text/tables.py OUT SET… --model NAME --command "bench/real_text/run …" --date 2026-11-17 [--machine A]

Writes docs/results/data/real-text-SET.json. Intervals are by prompt: questions about one text are right or wrong together.
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
    a = parser.parse_args()
    for name in a.sets:
        scores, texts = collections.defaultdict(lambda: collections.defaultdict(list)), collections.defaultdict(dict)
        for line in (a.out / f"{name}.jsonl").read_text().splitlines():
            record = json.loads(line)
            if "policy" not in record:
                continue
            scores[record["policy"]][record["id"].split("-")[0]].append(record["score"])
            texts[record["policy"]][record["id"]] = record["answer"]
        seen = captured((a.out / f"{name}.md").read_text())
        rows = []
        for policy, by_prompt in scores.items():
            all_scores = [one for ones in by_prompt.values() for one in ones]
            low, high = interval(by_prompt)
            same = sum(texts[policy][key] == text for key, text in texts["dense"].items())
            recall, error, flops, time = seen.get(policy, ["100", "0", "100", "100"])
            rows.append([policy.removesuffix(";dense-below=0"), f"{100 * sum(all_scores) / len(all_scores):.1f}",
                         f"{100 * low:.0f} – {100 * high:.0f}", f"{100 * same / len(texts['dense']):.0f}", recall, error, flops, time])
        kind, tokens = name.split("-")
        questions = len(texts["dense"])
        table = result_table.Table(
            title=f"Facts in real {kind}, {int(tokens):,} tokens, {a.model}",
            columns=["attention", "right, %", "95 % interval, by prompt", "same text as dense, %", "attention held, %", "error of the output, %",
                     "FLOPs, %", "attention time, %"],
            rows=rows, align="l" + 7 * "r", command=a.command, machine=a.machine, date=a.date, weights="published",
            how=f"{questions} questions about {len(scores['dense'])} texts" + (f"; {a.how}" if a.how else ""), note=a.note)
        path = DATA / f"real-text-{name}.json"
        table.save(path)
        print(path)


if __name__ == "__main__":
    main()
