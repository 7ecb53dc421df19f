"""A draft and what changes its weights: Muon for matrices, AdamW for the rest, a cosine from `peak` to `low`."""
import math

import torch

from training.tiny.muon import Muon


class Learner:
    def __init__(self, draft, peak, low):
        self.draft, self.peak, self.low, self.step = draft, peak, low, 0
        parameters = list(draft.parameters())
        self.muon = Muon([dict(params=[p for p in parameters if p.dim() == 2], scale=1, weight_decay=0.01)])
        self.adam = torch.optim.AdamW([p for p in parameters if p.dim() < 2], betas=(0.9, 0.98), weight_decay=0.0)
        self.rate = torch.zeros((), device=parameters[0].device)

    def update(self, loss, progress):
        """progress: the part of the training that is done"""
        rate = (self.low + (self.peak - self.low) * 0.5 * (1 + math.cos(math.pi * progress))) * min(1, (self.step + 1) / 100)
        for p in self.draft.parameters():
            p.grad = None
        loss.backward()
        for p in self.draft.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        torch.nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
        self.rate.fill_(rate)
        for g in self.adam.param_groups:
            g["lr"] = rate
        self.adam.step()
        self.muon.step(self.rate)
        self.step += 1

    def state(self):
        return dict(draft=self.draft.state_dict(), adam=self.adam.state_dict(), muon=[s[1] for s in self.muon.stacks],
                    sizes=self.draft.sizes, step=self.step)

    def restore(self, state):
        self.draft.load_state_dict(state["draft"])
        self.draft.sizes = state["sizes"]
        self.adam.load_state_dict(state["adam"])
        for (_, buffer, _, _), saved in zip(self.muon.stacks, state["muon"]):
            buffer.copy_(saved)
        self.step = state["step"]
