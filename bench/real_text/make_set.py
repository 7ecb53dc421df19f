#!/usr/bin/env python3
"""Makes sets of facts hidden in real prose and real code, for `kinora eval` with a published text model.

    bench/real_text/make_set.py OUT --tokens 2000 4000 8000 [--prompts 4] [--facts 8] [--prose FILE …] [--code FILE …]

Every prompt is a stretch of text with some facts between its paragraphs (RULER's needles with several keys); each of them is
asked for, so that one prefill serves many questions. In code the facts are assignments, some by way of another name. Without
--prose and --code the text is that of Python's standard library: docstrings and sources. OUT/prose-2000/DATA.jsonl and so on.
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


def facts_of(kind, count, draw):
    """(what stands in the text, question, the number that an answer must hold)"""
    out = []
    for name in draw.sample(WORDS, count):
        number = str(draw.randrange(10_000, 100_000))
        if kind == "prose":
            out.append(([f"The special magic number for {name} is {number}."],
                        f"What is the special magic number for {name}? Answer with the number only.", number))
        elif draw.random() < 0.5:
            out.append(([f"{name}_limit = {number}"], f"Which number is {name}_limit set to? Answer with the number only.", number))
        else:
            out.append(([f"{name}_base = {number}", f"{name}_limit = {name}_base"],
                        f"{name}_limit is set by way of another name. Which number is it? Answer with the number only.", number))
    return out


def prompt(kind, tokens, count, pieces, draw):
    """A text of about this many tokens and what can be asked about it, with the depth of each fact."""
    length, text, at = tokens * CHARACTERS[kind], [], draw.randrange(len(pieces))
    while sum(len(p) + 2 for p in text) < length:
        text.append(pieces[at % len(pieces)])
        at += 1
    questions = []
    for lines, question, number in facts_of(kind, count, draw):
        places = sorted(draw.randrange(len(text) + 1) for _ in lines)
        for place, line in reversed(list(zip(places, lines))):
            text.insert(place, line)
        questions.append((lines[-1], question, number))
    joined = "\n\n".join(text)
    return joined, [(q, a, joined.index(line) / len(joined)) for line, q, a in questions]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2000, 4000, 8000])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--facts", type=int, default=8)
    parser.add_argument("--prose", nargs="+")
    parser.add_argument("--code", nargs="+")
    parser.add_argument("--seed", default="real text")
    a = parser.parse_args()
    for kind, files in (("prose", a.prose), ("code", a.code)):
        pieces = paragraphs(kind, files)
        for tokens in a.tokens:
            folder = a.out / f"{kind}-{tokens}"
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / "DATA.jsonl", "w") as data:
                for number in range(a.prompts):
                    draw = random.Random(f"{a.seed}/{kind}/{tokens}/{number}")
                    text, questions = prompt(kind, tokens, a.facts, pieces, draw)
                    for i, (question, right, depth) in enumerate(questions):
                        data.write(json.dumps({"id": f"{number}-{i}", "parts": [{"text": text}], "question": question, "answer": right,
                                               "contains": True, "type": kind, "length": tokens, "depth": round(depth, 3)}) + "\n")
            print(f"{folder}/DATA.jsonl: {a.prompts} prompts, {a.prompts * a.facts} questions")


if __name__ == "__main__":
    main()
