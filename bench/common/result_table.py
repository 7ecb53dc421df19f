"""A table of measured results as data: what benchmarks write, docs/results/import takes and docs/results/render prints."""
import dataclasses
import datetime
import json
import os
import pathlib
import re
import shlex
import sys

WEIGHTS = {"bundled": "bundled model", "random": "random weights", "published": "published weights", "none": "no model"}


@dataclasses.dataclass
class Table:
    """Cells are text, exactly as measured. `command` are the lines that print it, `how` the conditions of the run in a few words, `weights` one of
    WEIGHTS, `align` a letter per column (l or r), `note` a paragraph or a list of points."""
    title: str = ""
    columns: list = dataclasses.field(default_factory=list)
    rows: list = dataclasses.field(default_factory=list)
    align: str = ""
    command: list = dataclasses.field(default_factory=list)
    machine: str = ""
    date: str = ""
    weights: str = ""
    how: str = ""
    note: object = ""

    def markdown(self):
        align = self.align or "l" * len(self.columns)
        lines = [self.columns, ["---:" if a == "r" else "---" for a in align], *self.rows]
        return "".join("|" + "|".join(cells) + "|\n" if i == 1 else "| " + " | ".join(map(str, cells)) + " |\n" for i, cells in enumerate(lines))

    def problem(self):
        """What is wrong with it, or nothing."""
        for number, row in enumerate(self.rows, 1):
            if len(row) != len(self.columns):
                return f"row {number} has {len(row)} cells for {len(self.columns)} columns"
            if any(not isinstance(cell, str) or "\n" in cell or "|" in re.sub(r"\{[^{}]*\}", "", cell) for cell in row):
                return f"row {number} has a cell that is not one line of text without '|'"
        if self.align and (len(self.align) != len(self.columns) or set(self.align) - set("lr")):
            return "align needs one l or r for every column"
        if self.weights and self.weights not in WEIGHTS:
            return f"weights are '{self.weights}'; known: {', '.join(WEIGHTS)}"
        if self.command and not (self.machine and self.date and self.weights):
            return "a table with a command needs machine, date and weights"
        return None

    def save(self, path):
        """As JSON, one row per line."""
        fields = {key: value for key, value in dataclasses.asdict(self).items() if value or key in ("columns", "rows")}
        fields["rows"] = "@"
        text = json.dumps(fields, indent=1, ensure_ascii=False)
        rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in self.rows)
        text = text.replace('"@"', f"[\n{rows}\n ]" if rows else "[]")
        text = re.sub(r'("columns": )\[\n(.*?)\n \]', lambda m: m[1] + "[" + re.sub(r"\n\s+", " ", m[2].strip()) + "]", text, flags=re.S)
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def load(path):
    fields = json.loads(pathlib.Path(path).read_text())
    unknown = fields.keys() - {field.name for field in dataclasses.fields(Table)}
    if unknown:
        raise ValueError(f"unknown key '{sorted(unknown)[0]}'")
    return Table(**fields)


def read_markdown(text):
    """Every Markdown table in a text. Bold cells lose their stars: what to stress is for the page to say."""
    def cells(line):
        return [cell.strip().replace("**", "") for cell in line.strip().strip("|").split("|")]

    tables, lines = [], [line for line in text.splitlines()] + [""]
    for i, line in enumerate(lines[1:], 1):
        if re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", line.strip()) and lines[i - 1].startswith("|"):
            end = next(j for j in range(i + 1, len(lines) + 1) if j == len(lines) or not lines[j].startswith("|"))
            align = "".join("r" if mark.strip().endswith(":") else "l" for mark in line.strip().strip("|").split("|"))
            width = len(align)
            rows = [(cells(row) + [""] * width)[:width] for row in lines[i + 1:end]]
            tables.append(Table(columns=(cells(lines[i - 1]) + [""] * width)[:width], rows=rows, align=align if "r" in align else ""))
    return tables


def measured(title, columns, rows, weights, align=""):
    """The table that the running program just measured: its command is the one that started it, without the machine's folders, its date today."""
    script = os.path.relpath(pathlib.Path(sys.argv[0]).resolve(), pathlib.Path(__file__).resolve().parents[2])
    words = [pathlib.Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    if "--json" in words:
        del words[words.index("--json"):words.index("--json") + 2]
    return Table(title=title, columns=list(columns), rows=[list(map(str, row)) for row in rows], align=align, weights=weights,
                 command=[shlex.join([script, *words])], date=datetime.date.today().isoformat())
