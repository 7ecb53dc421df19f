"""Prompts, the two ways through the network, and the whole training road in a minute on a CPU."""
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import torch

from training.tiny import ask, batches, evaluate, export, model as models, prompt
from training.tiny.tokenizer import Text
from training.world import render, scene

ROOT = pathlib.Path(__file__).parents[2]


class Prompts(unittest.TestCase):
    def test_positions_of_video_and_text(self):
        text = Text()
        p = prompt.Prefix(text)
        start = p.next
        p.show(prompt.Visual(3, 2, 2, prompt.interval_of(1)))
        ids, positions = p.arrays()
        self.assertEqual(list(ids[-12:]), [text.video_pad] * 12)
        base = start + 1  # after vision_start
        self.assertEqual([tuple(c) for c in positions[:, -12:-7].T - base], [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (4, 0, 0)])
        self.assertEqual(p.next, base + 8 + 1)
        self.assertEqual(p.after(1), base + 2)

    def test_tokens_survive_a_round_trip(self):
        text = Text()
        for words in ("What moves over the blue stripes?", "naïve — 漢字 🙂\n\n  x", "I'll say 42."):
            self.assertEqual(text.tokenizer.decode(text.encode(words)), words)


class Network(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)
        self.model, self.text = models.Model().eval(), Text()

    def test_size(self):
        self.assertLessEqual(sum(p.numel() for p in self.model.parameters()), 12_000_000)

    @torch.no_grad()
    def test_branches_equal_one_question_at_a_time(self):
        shape, renderer = batches.Shape(16, (5, 4), 2, 260, passages=160), render.Renderer()
        rng = random.Random(4)
        samples = [batches.sample(rng, f"b{i}", shape, self.text, count=6) for i in range(2)]
        b = evaluate.on("cpu", batches.collate(samples, shape, self.text))
        visual = evaluate.see(self.model, renderer, b["drawn"], shape.grid, torch.float32).view(2, -1, self.model.config.hidden)
        together = self.model.branches(visual, b).view(2, -1, self.model.config.hidden)
        for n, s in enumerate(samples):
            ids, positions = s.prefix.arrays()
            x = self.model.embed(torch.from_numpy(ids))
            x[torch.from_numpy(s.visual_rows)] = visual[n]
            for j in b["branch"][n].unique().tolist():
                rows = (b["branch"][n] == j).nonzero()[:, 0]
                if j < 0:
                    continue
                seen = int(b["limit"][n, rows[0]])
                _, cache = self.model.prefill(x[:seen], torch.from_numpy(positions)[:, :seen])
                alone, _ = self.model.prefill(self.model.embed(b["ids"][n, rows]), b["positions"][n, rows].expand(3, -1), cache)
                torch.testing.assert_close(alone, together[n, rows], atol=2e-4, rtol=1e-3)

    @torch.no_grad()
    def test_windows(self):
        """In a window layer a patch does not see other windows: changing the far window changes nothing here."""
        config = models.Config(full_attention=())
        model = models.Model(config).eval()
        patches = torch.randn(1, 4 * 8 * 4, 1176)
        before = model.look(patches, 4, 8)
        right = torch.zeros(4, 8, dtype=torch.bool)
        right[:, 4:] = True
        patches[:, right.flatten().repeat_interleave(4)] += 1
        after = model.look(patches, 4, 8)
        torch.testing.assert_close(before[:, ~right.flatten()], after[:, ~right.flatten()])
        self.assertFalse(torch.allclose(before[:, right.flatten()], after[:, right.flatten()]))

    def test_saved_and_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            export.save(self.model, folder, 15_000_000)
            again = ask.open_model(folder)
        for (name, a), b in zip(self.model.named_parameters(), again.parameters()):
            torch.testing.assert_close(a.bfloat16().float(), b, msg=name)


class BundledModel(unittest.TestCase):
    def test_it_answers(self):
        renderer, text = render.Renderer(), Text()
        session = ask.Session(ask.open_model(), text)
        world = scene.sample("bundled", 24, cards=1)
        frames = renderer.draw(torch.from_numpy(scene.parameters(world)), 112, 112)
        session.show((frames.permute(0, 2, 3, 1) * 255).round().byte().numpy(), world.fps)
        session.prefill()
        self.assertEqual(session.ask(f"What is on the {world.cards[0].colour_name} card?"), world.cards[0].shows)
        self.assertEqual(session.ask("How many cards are there?"), "1")


class Road(unittest.TestCase):
    def test_smoke(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-m", "training.tiny.train", "--smoke", "--out", folder], cwd=ROOT,
                                  env=dict(os.environ, PYTHONPATH=str(ROOT)), capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            self.assertIn("caption", done.stdout)
            self.assertEqual(len(list(pathlib.Path(folder, "model").glob("*.safetensors"))), 2)
            resumed = subprocess.run([sys.executable, "-m", "training.tiny.train", "--smoke", "--out", folder, "--resume",
                                      str(pathlib.Path(folder, "model")), "--span", "0.5", "1"], cwd=ROOT,
                                     env=dict(os.environ, PYTHONPATH=str(ROOT)), capture_output=True, text=True)
            self.assertEqual(resumed.returncode, 0, resumed.stderr[-2000:])
            self.assertIn("resumed", resumed.stdout)


if __name__ == "__main__":
    unittest.main()
