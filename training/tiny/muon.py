"""Muon: momentum whose matrix updates are made orthogonal, scaled so that AdamW's learning rates fit.

Matrices of one shape are stacked and stepped together. Everything else (embeddings, norms, biases, heads)
stays with AdamW; see train.py.
"""
import torch


def orthogonal(g, steps=5):
    """Quintic Newton-Schulz iteration: g [n, rows, columns] towards singular values near one."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16() if g.is_cuda else g
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon:
    def __init__(self, groups, momentum=0.95):
        """groups: dicts with params (matrices), scale (of the learning rate) and weight_decay."""
        self.momentum, self.stacks = momentum, []
        for g in groups:
            shapes = {}
            for p in g["params"]:
                shapes.setdefault(tuple(p.shape), []).append(p)
            for shape, parameters in shapes.items():
                buffer = torch.zeros(len(parameters), *shape, device=parameters[0].device)
                self.stacks.append((parameters, buffer, g["scale"], g["weight_decay"]))

    @torch.no_grad()
    def step(self, rate):
        """rate: a tensor, so that a captured step follows it"""
        for parameters, buffer, scale, decay in self.stacks:
            g = torch.stack([p.grad for p in parameters])
            buffer.lerp_(g, 1 - self.momentum)
            update = orthogonal(g.lerp(buffer, self.momentum))
            # the size of AdamW's usual update: about 0.2 per element
            update = update.float() * (rate * (-scale * 0.2 * max(buffer.shape[1:]) ** 0.5))
            torch._foreach_mul_(parameters, 1 - rate * (scale * decay))
            torch._foreach_add_(parameters, list(update.unbind(0)))
