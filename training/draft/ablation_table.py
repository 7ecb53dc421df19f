"""What ablate.py found, as a Markdown table: a row for every draft and way of reading. ablate.py prints it; a saved result makes it again:

    python -m training.draft.ablation_table build/ablation/ablation.json | docs/results/import draft-ablation
"""
import json
import pathlib
import sys

VISUAL_TOKENS = 8  # of a frame


def markdown(result):
    """`result` is ablation.json as read from its file."""
    lengths = sorted(result["captions"], key=int)
    lines = [["draft", "reads visual rows", *(f"{VISUAL_TOKENS * int(n):,} visual tokens" for n in lengths)]]
    if "kept" in result:
        lines[0].append(f"{VISUAL_TOKENS * 4096:,} over {VISUAL_TOKENS * 128:,}")
    lines.append(["---"] * len(lines[0]))
    for name, ways in result["accepted"].items():
        for how, cells in ways.items():
            line = [name, "yes" if how == "visual rows read" else "no", *(f"{cells[n]['tau']:.2f}" if n in cells else "" for n in lengths)]
            if "kept" in result:
                kept = result["kept"][name][how]
                line.append(f"{100 * kept['share']:.1f} % ({100 * kept['low']:.1f} … {100 * kept['high']:.1f})")
            lines.append(line)
    captions = ", ".join(str(result["captions"][n]) for n in lengths)
    return "".join("| " + " | ".join(line) + " |\n" for line in lines) + f"\n{result['steps']:,} steps; captions: {captions}\n"


if __name__ == "__main__":
    print(markdown(json.loads(pathlib.Path(sys.argv[1]).read_text())), end="")
