#!/usr/bin/env python3
"""Makes sets of facts hidden in real prose and real code, for `kinora eval` with a published text model.

    bench/real_text/make_set.py OUT --tokens 2000 4000 8000 [--prompts 4] [--facts 8] [--similar N [--names N]] [--linked N]
                                    [--prose FILE …] [--code FILE …]

Every prompt is a stretch of text with some facts between its paragraphs (RULER's needles with several keys); each of them is
asked for, so that one prefill serves many questions. In code the facts are assignments, some by way of another name.
--similar asks for facts among others whose names are the same but for one word, and --linked for facts that stand in two places
(RULER's variable tracking). Without --prose and --code the text is that of Python's standard library: docstrings and sources.
OUT/prose-2000/DATA.jsonl and so on.
"""
import argparse
import ast
import json
import pathlib
import random
import sysconfig

WORDS = ("amber basil cedar delta ember fjord garnet harbor indigo juniper kelp lagoon maple nectar onyx pepper quartz raven saffron "
         "tundra umber velvet walnut xenon yarrow zephyr").split()
CHARACTERS = {"prose": 4.4, "code": 3.3}  # to a token, about


def library():
    """Sources of the standard library, in a fixed order."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return [p for p in sorted(folder.glob("*.py")) if p.stat().st_size > 10_000]


def docstrings(paths):
    """Paragraphs of the docstrings of some sources."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(errors="replace"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                yield from (p for p in text.split("\n\n") if len(p.split()) > 12 and ">>>" not in p)


def paragraphs(kind, files):
    if files:
        pieces = [p for f in files for p in pathlib.Path(f).read_text(errors="replace").split("\n\n")]
    elif kind == "prose":
        pieces = list(docstrings(library()))
    else:
        pieces = [p for path in library() for p in path.read_text(errors="replace").split("\n\n")]
    pieces = [p for p in pieces if p.strip()]
    if not pieces:
        raise SystemExit(f"no text for {kind}")
    return pieces


class Fact:
    """Lines that stand in the text in this order, the number that they hold, and the question for it; no question: a distractor."""

    def __init__(self, lines, number, question=None, needs="one place"):
        self.lines, self.number, self.question, self.needs = lines, number, question, needs


def fact(kind, name, number, asked=True, needs="one place"):
    if kind == "prose":
        line, question = f"The special magic number for {name} is {number}.", f"What is the special magic number for {name}?"
    else:
        name = name.replace(" ", "_")
        line, question = f"{name}_limit = {number}", f"Which number is {name}_limit set to?"
    return Fact([line], number, f"{question} Answer with the number only." if asked else None, needs)


def linked_fact(kind, name, other, number):
    """A fact that stands in two places; prose names another thing, code another variable."""
    if kind == "prose":
        lines = [f"The special magic number for {other} is {number}.", f"The special magic number for {name} is the same as the one for {other}."]
        question = f"What is the special magic number for {name}?"
    else:
        lines = [f"{name}_base = {number}", f"{name}_limit = {name}_base"]
        question = f"{name}_limit is set by way of another name. Which number is it?"
    return Fact(lines, number, f"{question} Answer with the number only.", "two places")


def facts_of(kind, counts, draw):
    """Facts of a prompt: plain ones, then those among similar ones, then linked ones."""
    plain, similar, count, linked = counts

    def number():
        return str(draw.randrange(10_000, 100_000))

    out, free = [], list(WORDS)

    def names(count):
        drawn = draw.sample(free, count)
        free[:] = [word for word in free if word not in drawn]
        return drawn

    for name in names(plain):
        value = number()
        out.append(fact(kind, name, value) if kind == "prose" or draw.random() < 0.5 else linked_fact(kind, name, None, value))
    if similar:
        side = next(n for n in range(2, 9) if n * n >= count)
        firsts, seconds = names(side), names(side)
        pairs = draw.sample([f"{first} {second}" for first in firsts for second in seconds], count)
        out += [fact(kind, pair, number(), i < similar, "similar names") for i, pair in enumerate(pairs)]
    for name, other in zip(names(linked), names(linked if kind == "prose" else 0) or [None] * linked):
        out.append(linked_fact(kind, name, other, number()))
    return out


def prompt(kind, tokens, counts, pieces, draw):
    """A text of about this many tokens, plain facts aside, and what can be asked about it, with the depth of each fact."""
    text, at = [], draw.randrange(len(pieces))
    facts = facts_of(kind, counts, draw)
    length = tokens * CHARACTERS[kind] - sum(len(line) + 2 for one in facts[counts[0]:] for line in one.lines)
    while sum(len(p) + 2 for p in text) < length:
        text.append(pieces[at % len(pieces)])
        at += 1
    for one in facts:
        places = sorted(draw.randrange(len(text) + 1) for _ in one.lines)
        for place, line in reversed(list(zip(places, one.lines))):
            text.insert(place, line)
    joined = "\n\n".join(text)
    return joined, [(one, joined.index(one.lines[-1]) / len(joined)) for one in facts if one.question]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2000, 4000, 8000])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--facts", type=int, default=8)
    parser.add_argument("--similar", type=int, default=0, help="besides, facts of names like others' but for one word")
    parser.add_argument("--names", type=int, help="how many such names there are; default: twice as many as are asked for")
    parser.add_argument("--linked", type=int, default=0, help="besides, facts that stand in two places")
    parser.add_argument("--prose", nargs="+")
    parser.add_argument("--code", nargs="+")
    parser.add_argument("--seed", default="real text")
    a = parser.parse_args()
    if not a.similar <= (a.names or 2 * a.similar) <= 64:
        parser.error(f"--names {a.names}: at least as many as --similar, and at most 64")
    for kind, files in (("prose", a.prose), ("code", a.code)):
        pieces = paragraphs(kind, files)
        for tokens in a.tokens:
            folder = a.out / f"{kind}-{tokens}"
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / "DATA.jsonl", "w") as data:
                for number in range(a.prompts):
                    draw = random.Random(f"{a.seed}/{kind}/{tokens}/{number}")
                    text, questions = prompt(kind, tokens, (a.facts, a.similar, a.names or 2 * a.similar, a.linked), pieces, draw)
                    for i, (one, depth) in enumerate(questions):
                        data.write(json.dumps({"id": f"{number}-{i}", "parts": [{"text": text}], "question": one.question,
                                               "answer": one.number, "contains": True, "type": one.needs, "length": tokens,
                                               "depth": round(depth, 3)}) + "\n")
            print(f"{folder}/DATA.jsonl: {a.prompts} prompts, {a.prompts * (a.facts + a.similar + a.linked)} questions")


if __name__ == "__main__":
    main()
