"""A draft that reads a few learned rows instead of all visual ones: the tests of steps and trees, and what is its own."""
import pathlib
import tempfile
import unittest

import torch

from training.draft import draft_test, steps, tiny, vispec
from training.tiny.tokenizer import MODEL, Text


class ViSpec(unittest.TestCase):
    slow = draft_test.Steps.slow
    slow_tree = draft_test.Steps.slow_tree
    test_trees_equal_one_node_at_a_time = draft_test.Steps.test_trees_equal_one_node_at_a_time
    test_steps_equal_one_guess_at_a_time = draft_test.Steps.test_steps_equal_one_guess_at_a_time

    def setUp(self):
        torch.manual_seed(3)
        self.target = tiny.Tiny(MODEL, "cpu", torch.float32)
        self.draft = vispec.like(self.target.draft(MODEL), 5)
        torch.nn.init.normal_(self.draft.adapter.whole.weight, std=0.05)
        shape = tiny.S(16, (4, 4), 2, 200, passages=100)
        b = {k: torch.from_numpy(v) for k, v in tiny.make("test", shape, Text()).items()}
        self.raw = self.target.rows(shape, b)
        with torch.no_grad():
            self.rows = self.draft.see(self.raw)

    def test_few_rows_are_read(self):
        read = self.rows.visual & ~self.rows.unread
        self.assertEqual(read.sum(1).tolist(), [5, 5])
        self.assertTrue((self.raw.visual.sum(1) > 50).all())
        places = read[0].nonzero()[:, 0]
        gaps = places.diff()
        self.assertLess(int(gaps.max()), 3 * int(gaps.min()) + 200)  # spread over all of the video
        text = ~self.rows.visual
        torch.testing.assert_close(self.rows.embeddings[text] - self.raw.embeddings[text],
                                   self.rows.whole.repeat_interleave(text.sum(1), 0), atol=1e-5, rtol=1e-5)

    @torch.no_grad()
    def test_rows_that_nobody_reads_do_not_matter(self):
        def logits():
            return steps.run(self.draft, self.rows, self.target.head, 2, True)[1][0]
        before = logits()
        self.rows.bridge = self.rows.bridge + self.rows.unread.unsqueeze(-1)
        torch.testing.assert_close(logits(), before)

    @torch.no_grad()
    def test_without_a_video_it_is_the_plain_draft(self):
        few, whole = self.draft.adapter(torch.randn(2, 7, self.draft.config.hidden), torch.zeros(2, 7, dtype=torch.bool))
        self.assertTrue((few == 0).all() and (whole == 0).all())

    def test_it_learns_what_the_video_says(self):
        adapter = list(self.draft.adapter.parameters())
        optimizer = torch.optim.AdamW(self.draft.parameters(), 1e-3)
        losses = []
        for _ in range(8):
            loss, _ = steps.loss_of(self.draft, self.draft.see(self.raw), self.target.head, 2, True)
            optimizer.zero_grad()
            loss.backward()
            self.assertTrue(all(p.grad is not None and p.grad.abs().sum() > 0 for p in adapter))
            optimizer.step()
            losses.append(float(loss.detach()))
        self.assertLess(losses[-1], 0.8 * losses[0])

    @torch.no_grad()
    def test_saved_and_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            vispec.save(self.draft, folder)
            again = vispec.load(folder)
            self.assertEqual(len(list(pathlib.Path(folder).iterdir())), 4)
        expected = steps.run(self.draft, self.rows, self.target.head, 1, True)[0][0]
        found = steps.run(again, again.see(self.raw), self.target.head, 1, True)[0][0]
        self.assertGreater(float((found.argmax(-1) == expected.argmax(-1)).float().mean()), 0.9)  # weights are rounded


if __name__ == "__main__":
    unittest.main()
