"""Compares the training code with transformers 4.57 on real files: same positions, same greedy answers.

    python -m training.tiny.check_transformers SET/DATA.jsonl [--model DIR] [--limit 100]

Goes through transformers' own processor, chat template and generate(), so it also proves that the model
directory is complete. 4.57 truncates second_per_grid_ts to whole seconds, so sets at 1 or 2 frames a second only.
"""
import argparse
import json
import pathlib
import sys

import torch

from training.tiny import ask
from training.tiny.tokenizer import MODEL, Text
from training.world import video_file


def message(line, folder):
    """The user message of a line of a set, and its videos as frames."""
    content, videos = [], []
    parts = line.get("content") or ([dict(type="video", video=line["video"])] if "video" in line else [])
    for part in parts:
        if part["type"] == "video":
            videos.append(video_file.read(folder / part["video"]))
        content.append(dict(part))
    content.append(dict(type="text", text=line["question"]))
    return [dict(role="user", content=content)], videos


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--limit", type=int, default=100)
    a = parser.parse_args()
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration
    theirs = Qwen2_5_VLForConditionalGeneration.from_pretrained(a.model, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(a.model)
    ours, text = ask.open_model(a.model), Text(a.model)
    folder, same, right, count, last, session = pathlib.Path(a.data).parent, 0, 0, 0, None, None
    for raw in open(a.data):
        line = json.loads(raw)
        if "image" in line or count == a.limit:
            continue
        messages, videos = message(line, folder)
        key = json.dumps(messages[0]["content"][:-1])
        if key != last:
            session, last = ask.Session(ours, text), key
            shown = iter(videos)
            for part in messages[0]["content"][:-1]:
                session.show(*next(shown)) if part["type"] == "video" else session.say(part["text"])
            session.prefill()
        mine = session.ask(line["question"])
        words = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        inputs = processor(text=[words], videos=[torch.from_numpy(p.copy()).permute(0, 3, 1, 2) for p, _ in videos] or None,
                           **(dict(videos_kwargs=dict(fps=videos[0][1], do_sample_frames=False)) if videos else {}), return_tensors="pt")
        with torch.no_grad():
            out = theirs.generate(**inputs, max_new_tokens=256, do_sample=False)
        other = processor.batch_decode(out[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)[0]
        count += 1
        same += mine == other
        right += other == line["answer"]
        if mine != other:
            print(f"{line['id']}: ours {mine!r}, transformers {other!r}, wanted {line['answer']!r}")
    print(f"{count} answers: {same} the same as transformers', {right} of transformers' right")
    sys.exit(same != count)


if __name__ == "__main__":
    main()
