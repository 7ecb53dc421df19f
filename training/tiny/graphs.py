"""Training steps as CUDA graphs: a small model's step is hundreds of tiny kernels, and launching them one by
one from Python takes longer than running them. One graph per input shape; on the CPU a step is just called.
"""
import collections
import time

import torch


class Steps:
    def __init__(self, body, device, log, captured=True):
        """body(key, buffers): a whole step, forward to optimizer, without host synchronisation."""
        self.body, self.log = body, log
        self.cuda = device.type == "cuda"
        self.captured = captured and self.cuda
        self.known, self.recent = {}, collections.deque()
        if self.cuda:
            self.pool, self.side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def run(self, key, inputs):
        """Copies `inputs` into the shape's own buffers and runs its step."""
        if key not in self.known:
            self._learn(key, inputs)
        buffers, graph = self.known[key]
        for name, value in inputs.items():
            buffers[name].copy_(value, non_blocking=True)
        if graph is None:
            self.body(key, buffers)
        else:
            graph.replay()
        if self.cuda:
            event = torch.cuda.Event()
            event.record()
            self.recent.append(event)
            if len(self.recent) > 3:
                self.recent.popleft().synchronize()

    def _learn(self, key, inputs):
        began = time.time()
        buffers = {k: v.clone() for k, v in inputs.items()}
        graph = None
        if self.captured:
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                for _ in range(2):
                    self.body(key, buffers)
            torch.cuda.current_stream().wait_stream(self.side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, pool=self.pool, stream=self.side):
                    self.body(key, buffers)
                torch.cuda.synchronize()
                warm = time.time()
                graph.replay()
                torch.cuda.synchronize()
                self.log(f"captured {key} in {warm - began:.1f} s, {1e3 * (time.time() - warm):.1f} ms a step, "
                         f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
            except RuntimeError as error:
                self.log(f"no graph for {key}: {str(error)[:300]}")
                graph, self.captured = None, False
                torch.cuda.synchronize()
        self.known[key] = (buffers, graph)
