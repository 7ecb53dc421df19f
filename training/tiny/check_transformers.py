"""Compares answers with transformers 4.57 on the same files: those of the training code, or those that kinora gave.

    python -m training.tiny.check_transformers SET/DATA.jsonl [--model DIR] [--limit 100]
    kinora eval SET/DATA.jsonl -m DIR --results ANSWERS; python -m training.tiny.check_transformers SET/DATA.jsonl --answers ANSWERS

Goes through transformers' own processor, chat template and generate(), so it also proves that the model
directory is complete. 4.57 truncates second_per_grid_ts to whole seconds, so sets at 1 or 2 frames a second only.
"""
import argparse
import json
import pathlib
import sys

import numpy as np
import torch

from training.tiny import ask
from training.tiny.tokenizer import MODEL, Text
from training.world import video_file


def read_image(path):
    from PIL import Image
    return np.asarray(Image.open(path).convert("RGB"))[None], 0.0


class Prompts:
    """The user message of a line of a set, and its videos and pictures as frames; read once for questions that share them."""

    def __init__(self, folder):
        self.folder, self.key, self.seen = folder, None, []

    def parts(self, line):
        return line.get("parts") or [{k: line[k]} for k in ("video", "image") if k in line]

    def message(self, line):
        parts = self.parts(line)
        key = json.dumps(parts)
        if key != self.key:
            self.key = key
            self.seen = [("video", *video_file.read(self.folder / p["video"])) if "video" in p else ("image", *read_image(self.folder / p["image"]))
                         for p in parts if "text" not in p]
        content, shown = [], iter(self.seen)
        for p in parts:
            content.append(dict(type="text", text=p["text"]) if "text" in p else {"type": next(shown)[0]})
        return [dict(role="user", content=content + [dict(type="text", text=line["question"])])]


class Trained:
    """The training code's own answers."""

    def __init__(self, directory):
        self.model, self.text, self.key, self.session = ask.open_model(directory), Text(directory), None, None

    def answer(self, line, prompts, messages):
        if self.key != prompts.key:
            self.key, self.session, shown = prompts.key, ask.Session(self.model, self.text), iter(prompts.seen)
            for part in messages[0]["content"][:-1]:
                if part["type"] == "text":
                    self.session.say(part["text"])
                else:
                    kind, pixels, fps = next(shown)
                    self.session.show(pixels, fps, kind == "image")
            self.session.prefill()
        return self.session.ask(line["question"])


class Kept:
    """Answers from the results file of `kinora eval`."""

    def __init__(self, path, policy):
        found = (json.loads(raw) for raw in open(path))
        self.answers = {r["id"]: r["answer"] for r in found if r["policy"] == policy}

    def answer(self, line, prompts, messages):
        return self.answers.get(line["id"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--frames", type=int, help="only questions about videos of this length")
    parser.add_argument("--answers", help="results file of kinora eval, in place of the training code")
    parser.add_argument("--policy", default="dense", help="whose answers of that file")
    parser.add_argument("--threads", type=int)
    a = parser.parse_args()
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration
    if a.threads:
        torch.set_num_threads(a.threads)
    theirs = Qwen2_5_VLForConditionalGeneration.from_pretrained(a.model, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(a.model)
    ours, prompts = Kept(a.answers, a.policy) if a.answers else Trained(a.model), Prompts(pathlib.Path(a.data).parent)
    same = right = count = 0
    for raw in open(a.data):
        line = json.loads(raw)
        if count == a.limit or (a.frames and line.get("frames") != a.frames):
            continue
        messages = prompts.message(line)
        mine = ours.answer(line, prompts, messages)
        if mine is None:
            continue
        words = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        videos = [torch.from_numpy(p.copy()).permute(0, 3, 1, 2) for kind, p, _ in prompts.seen if kind == "video"]
        images = [p[0] for kind, p, _ in prompts.seen if kind == "image"]
        more = dict(videos_kwargs=dict(fps=line["fps"], do_sample_frames=False)) if videos else {}
        inputs = processor(text=[words], videos=videos or None, images=images or None, **more, return_tensors="pt")
        with torch.no_grad():
            out = theirs.generate(**inputs, max_new_tokens=256, do_sample=False)
        other = processor.batch_decode(out[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)[0]
        count += 1
        same += mine == other
        right += other in line["answer"] if isinstance(line["answer"], list) else other == line["answer"]
        if mine != other:
            print(f"{line['id']}: ours {mine!r}, transformers {other!r}, wanted {line['answer']!r}", flush=True)
    print(f"{count} answers: {same} the same as transformers' ({100 * same / max(1, count):.2f} %), {right} of transformers' right")
    sys.exit(same < 0.995 * count)


if __name__ == "__main__":
    main()
