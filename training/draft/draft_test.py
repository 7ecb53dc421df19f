"""The steps of training against drafting one guess at a time, files, and the whole road in a minute on a CPU."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

from training.draft import model as drafts, premise, steps, tiny, trees
from training.tiny import batches, model as models
from training.tiny.tokenizer import MODEL, Text

ROOT = pathlib.Path(__file__).parents[2]


class Steps(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.target = tiny.Tiny(MODEL, "cpu", torch.float32)
        self.draft = self.target.draft(MODEL)
        shape = tiny.S(16, (4, 4), 2, 200, passages=100)
        b = {k: torch.from_numpy(v) for k, v in tiny.make("test", shape, Text()).items()}
        self.rows = self.target.rows(shape, b)

    def slow(self, n, t, ahead, see, path=None):
        """Logits of `ahead` guesses of sample n after its branch row t was confirmed: one row at a time, as kinora drafts.

        path: tokens to go on with; default: those that come next.
        """
        r, d = self.rows, self.draft
        first = r.beginning
        seen = [i for i in range(int(r.limit[n, t])) if (see or not r.visual[n, i]) and (r.unread is None or not r.unread[n, i])]
        own = [first + i for i in range(t + 1) if r.branch[n, i] == r.branch[n, t]]
        read = seen + own
        z = []
        for i in read:
            before = int(r.before[n, i])
            state = r.high[n, before] if before >= 0 else torch.zeros_like(r.high[n, 0])
            z.append(r.bridge[n, i] if r.visual[n, i] else d.join(r.embeddings[n, i], state))
        z, out = torch.stack(z)[None], []
        cos, sin = d.turns(r.positions[:, n:n + 1, read])
        k, v = d.keys(z, cos, sin)
        last, last_cos, last_sin = z[:, -1:], cos[:, -1:], sin[:, -1:]
        for step in range(ahead):
            s = d.run(last, last_cos, last_sin, k, v, torch.ones(1, 1, 1, k.shape[2], dtype=torch.bool))
            out.append(d.logits(s[0], self.target.head)[0])
            i = first + t + step + 1
            if step + 1 == ahead or (path is None and i >= r.high.shape[1]):
                break
            token = r.embeddings[n, i] if path is None else self.target.head[path[step]] + (0 if r.whole is None else r.whole[n])
            last = d.join(token, s[0, 0])[None, None]
            last_cos, last_sin = d.turns(r.positions[:, n:n + 1, first + t:first + t + 1] + step + 1)
            more = d.keys(last, last_cos, last_sin)
            k, v = torch.cat([k, more[0]], 2), torch.cat([v, more[1]], 2)
        return out

    @torch.no_grad()
    def test_steps_equal_one_guess_at_a_time(self):
        r, ahead, checked = self.rows, 4, 0
        place = torch.full(r.wanted.shape, -1)
        place[r.wanted] = torch.arange(int(r.wanted.sum()))
        for see in (True, False):
            results = steps.run(self.draft, r, self.target.head, ahead, see)
            for n, t in r.wanted.nonzero()[::11].tolist():
                for step, expected in enumerate(self.slow(n, t, ahead, see)):
                    if t + step >= r.branch.shape[1] or not r.wanted[n, t + step] or r.branch[n, t + step] != r.branch[n, t]:
                        break
                    logits, counts = results[step]
                    at = place[n, t + step]
                    self.assertTrue(counts[at])
                    torch.testing.assert_close(logits[at], expected, atol=2e-3, rtol=1e-3)
                    checked += 1
        self.assertGreater(checked, 40)

    def slow_tree(self, n, t, shape, see):
        """The kept paths of the tree below branch row t, every node by itself."""
        found, level = {}, {(): 0.0}
        for _ in range(shape.depth + 1):
            newest = {}
            for path in sorted(level, key=level.get, reverse=True)[:shape.width]:
                best = self.slow(n, t, len(path) + 1, see, path)[-1].log_softmax(-1).topk(shape.width)
                newest.update({path + (i,): level[path] + p for i, p in zip(best.indices.tolist(), best.values.tolist())})
            found.update(newest)
            level = newest
        return set(sorted(found, key=found.get, reverse=True)[:shape.total - 1])

    @torch.no_grad()
    def test_trees_equal_one_node_at_a_time(self):
        r = self.rows
        for n, see, shape in ((0, True, trees.Shape(9, 2, 3)), (1, False, trees.Shape(9, 2, 3)), (0, False, trees.Shape(4, 2, 1))):
            kept = trees.trees(self.draft, r, n, self.target.head, shape, see)
            roots, said = trees.answer_rows(r, n)
            self.assertEqual((len(kept), len(said)), (len(roots), len(roots)))
            self.assertGreater(len(roots), 8)
            for at in (0, 3, len(roots) - 1):
                self.assertEqual(kept[at], self.slow_tree(n, int(roots[at]), shape, see))

    @torch.no_grad()
    def test_answers_of_trees_are_those_of_the_batch(self):
        r = self.rows
        for n in range(len(r.branch)):
            roots, said = trees.answer_rows(r, n)
            # The token after a root stands in the next row; the last one ends the answer.
            following = r.embeddings[n, r.beginning + roots[1:]]
            torch.testing.assert_close(following, torch.nn.functional.embedding(said[:-1], self.target.head))

    def test_passes_of_an_answer(self):
        kept = [{(5,), (5, 6)}, {(6,)}, {(9,)}, set(), {(4,), (4, 1), (4, 1, 2)}]
        # Two right and one more, none right, the last one right.
        self.assertEqual(trees.passes(kept, [5, 6, 7, 8, 4]), (5, 3))
        self.assertEqual(trees.passes([set()] * 3, [1, 2, 3]), (3, 3))
        self.assertEqual(trees.passes([{(1,), (1, 2), (1, 2, 3)}, set(), set()], [1, 2, 3]), (3, 1))

    @torch.no_grad()
    def test_unseen_visual_rows_do_not_matter(self):
        def logits(see):
            return steps.run(self.draft, self.rows, self.target.head, 2, see)[1][0]
        hidden, shown = logits(False), logits(True)
        self.rows.bridge = self.rows.bridge + 1
        torch.testing.assert_close(logits(False), hidden)
        self.assertFalse(torch.allclose(logits(True), shown))

    def test_it_learns(self):
        optimizer = torch.optim.AdamW(self.draft.parameters(), 1e-3)
        losses = []
        for _ in range(12):
            loss, hit = steps.loss_of(self.draft, self.rows, self.target.head, 2, True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        self.assertLess(losses[-1], 0.6 * losses[0])
        self.assertTrue((hit[:, 0] <= hit[:, 1]).all())

    def test_lengths_of_chains(self):
        self.assertAlmostEqual(steps.chain_length(torch.tensor([[8., 10.], [4., 8.], [0., 4.]])), 1 + .8 + .4)


class Premise(unittest.TestCase):
    @torch.no_grad()
    def test_rows_that_are_never_hidden_change_nothing(self):
        model = models.Model(models.read_config(MODEL)).eval().load(MODEL)
        text, shape = Text(), batches.Shape(4, (4, 4), 2, 160, passages=70)
        b = {k: torch.from_numpy(v) if hasattr(v, "dtype") else v for k, v in batches.make("test", shape, text, vary=False).items()}
        visual = torch.randn(2, shape.visual_tokens, model.config.hidden)
        is_visual = b["prefix_ids"] == text.video_pad
        plain = model.branches(visual, b)
        torch.testing.assert_close(premise.run(model, visual, b, is_visual, model.config.layers), plain)
        blind = premise.run(model, visual, b, is_visual, 0)
        self.assertFalse(torch.allclose(blind, plain, atol=0.1))
        torch.testing.assert_close(premise.run(model, torch.randn_like(visual), b, is_visual, 0), blind)


class Files(unittest.TestCase):
    def test_saved_and_loaded(self):
        for own in (0, 40):
            draft = drafts.Draft(drafts.config_of(MODEL, own))
            draft.sizes = (0.25, 8.0)
            with tempfile.TemporaryDirectory() as folder:
                drafts.save(draft, folder)
                again = drafts.load(folder)
                self.assertLess(sum(f.stat().st_size for f in pathlib.Path(folder).iterdir()), 4_000_000)
            self.assertEqual(again.config, draft.config)
            for (name, a), b in zip(draft.named_parameters(), again.parameters()):
                if name != "fc.weight":
                    torch.testing.assert_close(a.bfloat16().float(), b, msg=name)
            e, s = torch.randn(2, 5, draft.config.hidden)
            torch.testing.assert_close(again.join(e, s), draft.join(e, s), atol=0.2, rtol=0.02)


    def test_a_loaded_one_goes_on_where_it_was(self):
        draft = drafts.Draft(drafts.config_of(MODEL))
        e, s = torch.randn(2, 5, draft.config.hidden)
        before = draft.join(e, s)
        draft.scale_inputs((0.25, 8.0))
        torch.testing.assert_close(draft.join(e, s), before, atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(draft.plain_fc() @ torch.cat([e, s], -1).T, before.T, atol=1e-3, rtol=1e-4)

    @torch.no_grad()
    def test_a_head_of_its_own_begins_as_the_targets(self):
        draft, head, tokens = drafts.Draft(drafts.config_of(MODEL)), torch.randn(1280, 384), [3, 7, 1100]
        own, s = drafts.with_own_head(draft, head, tokens), torch.randn(5, 384)
        torch.testing.assert_close(own.logits(s, head), draft.logits(s, head)[:, tokens])
        self.assertEqual(own.d2t.tolist(), tokens)

    def test_frequent_tokens(self):
        tokens = tiny.frequent_tokens(30, Text(), tiny.SMOKE)
        self.assertEqual(len(tokens), 30)
        self.assertEqual(tokens, sorted(set(tokens)))


class Road(unittest.TestCase):
    def test_smoke(self):
        with tempfile.TemporaryDirectory() as folder:
            def run(*more):
                return subprocess.run([sys.executable, "-m", "training.draft.train", "--smoke", "--out", folder, *more], cwd=ROOT,
                                      env=dict(os.environ, PYTHONPATH=str(ROOT)), capture_output=True, text=True)
            done = run()
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            for words in ("text step", "visual step", "held out"):
                self.assertIn(words, done.stdout)
            self.assertEqual(sorted(f.name for f in pathlib.Path(folder, "draft").iterdir()), ["config.json", "model.safetensors"])
            resumed = run("--resume", "--visual", "raw", "--ahead", "1")
            self.assertEqual(resumed.returncode, 0, resumed.stderr[-2000:])
            self.assertIn("resumed after 6 steps", resumed.stdout)

    def test_videos_may_be_kept_short(self):
        for longest in (16, 64, 4096):
            short = tiny.no_longer_than(tiny.STAGES, longest)
            self.assertEqual(list(short), list(tiny.STAGES))
            self.assertTrue(all(shape.frames <= longest for shapes in short.values() for shape in shapes))
            self.assertEqual(max(shape.frames for shape in short["visual"]), longest)
        with self.assertRaisesRegex(ValueError, "text stage has no videos of 15 frames or fewer: its shortest have 16"):
            tiny.no_longer_than(tiny.STAGES, 15)

    def test_ablation(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-m", "training.draft.ablate", "--smoke", "--out", folder, "--arms", "MSD", "text only",
                                   "ViSpec", "Sparrow, own head", "--start", str(MODEL / "draft"), "--longest", "16"], cwd=ROOT,
                                  env=dict(os.environ, PYTHONPATH=str(ROOT)), capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            result = json.loads(pathlib.Path(folder, "ablation.json").read_text())
            self.assertEqual({name: sorted(ways) for name, ways in result["accepted"].items()},
                             {"MSD": ["text-anchored", "visual rows read"], "text only": ["text-anchored"],
                              "ViSpec": ["visual rows read"], "Sparrow, own head": ["text-anchored", "visual rows read"]})
            self.assertIn("| draft | reads visual rows | 128 visual tokens |", done.stdout)
            self.assertIn("| text only | no | ", done.stdout)


if __name__ == "__main__":
    unittest.main()
