"""Makes tests/fixtures/drafts/: a random draft of a small model, and what it says by this code, for kinora to be compared with.

    python -m training.draft.reference
"""
import pathlib

import torch
from safetensors.torch import load_file, save_file

from training.draft import model as drafts

FIXTURES = pathlib.Path(__file__).parents[2] / "tests" / "fixtures"
TARGET = FIXTURES / "models" / "qwen2_5_vl_tied_new"
TEXT, GUESSES = 13, 4


@torch.no_grad()
def main():
    torch.manual_seed(20)
    weights = load_file(str(TARGET / "model.safetensors"))
    table = next(v for k, v in weights.items() if k.endswith("embed_tokens.weight")).float()
    out = FIXTURES / "drafts" / TARGET.name
    draft = drafts.Draft(drafts.config_of(TARGET))
    for p in draft.parameters():
        p.copy_(torch.randn(p.shape) * 0.3 + (p.dim() == 1))
    draft.norm.weight.mul_(4)  # so that something is likely
    drafts.save(draft, out)
    draft = drafts.load(out)
    ids = torch.randint(0, draft.config.vocabulary, (TEXT + GUESSES,))
    positions = torch.arange(TEXT + GUESSES).repeat(3, 1)
    positions[0, 5:] += 700  # after a video
    positions[1:, 5:] += 31
    states = torch.randn(TEXT - 1, draft.config.hidden)
    keys = values = None
    before, said = torch.zeros(draft.config.hidden), []
    for i in range(TEXT + GUESSES):
        z = draft.join(table[ids[i]], before)[None, None]
        cos, sin = draft.turns(positions[:, None, i:i + 1])
        k, v = draft.keys(z, cos, sin)
        keys, values = (k, v) if keys is None else (torch.cat([keys, k], 2), torch.cat([values, v], 2))
        s = draft.run(z, cos, sin, keys, values, None)
        before = states[i] if i + 1 < TEXT else s[0, 0]
        if i + 1 >= TEXT:
            said.append(torch.log_softmax(draft.logits(s[0], table)[0], -1))
    save_file(dict(ids=ids.int(), positions=positions.int(), states=states, log_probabilities=torch.stack(said)), str(out / "case.safetensors"))


if __name__ == "__main__":
    main()
