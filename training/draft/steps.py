"""One batch through the draft as it will be used: first from the target's states, then on from its own guesses' states.

A batch is rows of some conversations (`Rows`): a shared beginning, then branches that each go on from it. In step 1 every row is made from
the target's states. In step k (multi-token prediction) row t is a guess k - 1 tokens past what the target has confirmed: it is made from
the draft's own state of step k - 1 and reads the step-1 rows up to t - k + 1 and its own ancestors, row t - k + j of step j.
"""
import dataclasses

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Rows:
    """What is known of a batch; rows are [batch, beginning + branches]."""
    embeddings: torch.Tensor  # [batch, rows, hidden] of the tokens, visual ones as the target is given them
    high: torch.Tensor        # the same, the target's states of its second-to-last layer
    bridge: torch.Tensor      # the same, what stands for visual rows: the target's states of its middle layer, or its visual embeddings
    visual: torch.Tensor      # [batch, rows] bool
    before: torch.Tensor      # [batch, rows] the text row before; -1: none
    positions: torch.Tensor   # [3, batch, rows]
    branch: torch.Tensor      # [batch, branch rows] number of the branch; -1: padding
    limit: torch.Tensor       # [batch, branch rows] rows of the beginning that are read
    wanted: torch.Tensor      # [batch, branch rows] bool: rows whose next token is part of an answer
    target: torch.Tensor      # [wanted rows, vocabulary] the target's log-probabilities there
    said: torch.Tensor        # [wanted rows] the token that does come next
    # Of drafts that read the video otherwise (vispec.py):
    unread: torch.Tensor = None  # [batch, rows] bool: rows that nobody reads
    whole: torch.Tensor = None   # [batch, hidden] added to the embeddings of text, of guesses too

    @property
    def beginning(self):
        return self.high.shape[1] - self.branch.shape[1]


def take(x, index):
    """x [batch, rows, hidden] at index [batch, n]; zeros where it is -1"""
    picked = torch.gather(x, 1, index.clamp(min=0).unsqueeze(-1).expand(-1, -1, x.shape[-1]))
    return picked * (index >= 0).unsqueeze(-1)


def _masks(rows, steps, see):
    """Of each step: [batch, 1, branch rows, keys], keys being all rows of step 1, then the branch rows of steps 2, 3, ..."""
    count, device = rows.branch.shape[1], rows.branch.device
    place = torch.arange(count, device=device)
    same = (rows.branch[:, :, None] == rows.branch[:, None, :]) & (rows.branch >= 0)[:, :, None]
    seen = torch.arange(rows.beginning, device=device).view(1, 1, -1) < rows.limit.unsqueeze(-1)
    if not see:
        seen = seen & ~rows.visual[:, None, :rows.beginning]
    if rows.unread is not None:
        seen = seen & ~rows.unread[:, None, :rows.beginning]
    far = place[:, None] - place[None, :]
    masks = []
    for k in range(1, steps + 1):
        parts = [seen, same & (far >= k - 1)] + [same & (far == k - j) for j in range(2, k + 1)]
        mask = torch.cat([p.expand(len(rows.branch), -1, -1) for p in parts], 2)
        mask[:, :, 0] |= ~mask.any(2)  # rows of nobody read something, so that nothing is undefined
        masks.append(mask.unsqueeze(1))
    return masks


def run(draft, rows, head, steps, see=True):
    """Per step (logits of the wanted rows, which of these count): rows too near the start of their branch do not.

    see: whether visual rows are read; kinora never lets the draft read them.
    """
    first, count = rows.beginning, rows.branch.shape[1]
    states = take(rows.high, rows.before)
    z = draft.join(rows.embeddings, states)
    z = torch.where(rows.visual.unsqueeze(-1), rows.bridge.to(z.dtype), z)
    cos, sin = draft.turns(rows.positions)
    own_cos, own_sin = cos[:, first:], sin[:, first:]
    keys, values = draft.keys(z, cos, sin)
    place = torch.arange(count, device=rows.branch.device)
    out = []
    s = None
    for k, mask in enumerate(_masks(rows, steps, see), 1):
        if k == 1:
            z = z[:, first:]
        else:
            z = draft.join(rows.embeddings[:, first:], s.roll(1, 1))
            more = draft.keys(z, own_cos, own_sin)
            keys, values = torch.cat([keys, more[0]], 2), torch.cat([values, more[1]], 2)
        s = draft.run(z, own_cos, own_sin, keys, values, mask)
        start = place - (k - 1)
        near = (start >= 0) & (rows.branch == rows.branch[:, start.clamp(min=0)])
        out.append((draft.logits(s[rows.wanted], head), near[rows.wanted]))
    return out


def loss_of(draft, rows, head, steps, see, fading=0.8):
    """Cross-entropy against the target's distribution, each step weighted by `fading`; and what hit (see `hits`)."""
    total, weight = 0.0, 0.0
    results = run(draft, rows, head, steps, see)
    for k, (logits, counts) in enumerate(results):
        p = rows.target.exp()
        if draft.config.own_vocabulary:
            p = p[:, draft.d2t.long()]
        each = -(p * F.log_softmax(logits, -1)).sum(-1)
        total = total + fading ** k * (each * counts).sum() / counts.sum().clamp(min=1)
        weight += fading ** k
    return total / weight, hits(draft, rows, results)


@torch.no_grad()
def hits(draft, rows, results):
    """[steps, 2]: of the guesses whose earlier ones were all right, how many were right too, and how many there were.

    Guess k of a chain stands at row t + k - 1 of step k. With them, the accepted length of chains is 1 + sum over k of the product of the
    first k rates (the token of the target itself counted).
    """
    batch, count = rows.branch.shape
    alive = None
    out = torch.zeros(len(results), 2, device=rows.branch.device)
    for k, (logits, counts) in enumerate(results):
        guess = logits.argmax(-1)
        if draft.config.own_vocabulary:
            guess = draft.d2t.long()[guess]
        right = torch.zeros(batch, count, dtype=torch.bool, device=rows.branch.device)
        right[rows.wanted] = (guess == rows.said) & counts
        asked = torch.zeros_like(right)
        asked[rows.wanted] = counts
        if alive is not None:
            asked = asked & alive.roll(1, 1)
        out[k, 0], out[k, 1] = (right & asked).sum(), asked.sum()
        alive = right & asked
    return out


def chain_length(hit):
    """Accepted tokens of a pass with chains as long as the steps, the target's own token counted."""
    length, reach = 1.0, 1.0
    for right, asked in hit.tolist():
        reach *= right / max(1, asked)
        length += reach
    return length
