"""The world is deterministic, asks in many words, answers truly, and survives a codec."""
import pathlib
import random
import shutil
import tempfile
import unittest

import numpy as np
import torch

from training.world import captions, names, passages, phrases, questions, render, scene, video_file


class Names(unittest.TestCase):
    def test_enough_pictures_in_groups_with_unique_names(self):
        self.assertGreaterEqual(len(names.PICTURES), 150)
        self.assertEqual(len(set(names.PICTURES)), len(names.PICTURES))
        self.assertEqual(set(names.PICTURE_GROUP), set(names.GROUPS))

    def test_articles(self):
        self.assertEqual(names.with_article("apple"), "an apple")
        self.assertEqual(names.with_article("dog"), "a dog")
        self.assertEqual(names.with_article("milk"), "milk")


class Scenes(unittest.TestCase):
    def test_the_same_seed_makes_the_same_video(self):
        for frames in (16, 64, 258):
            a, b = (scene.parameters(scene.sample("x", frames)) for _ in range(2))
            np.testing.assert_array_equal(a, b)
            self.assertFalse(np.array_equal(a, scene.parameters(scene.sample("y", frames))))

    def test_scenes_cover_the_video_and_cards_do_not_meet(self):
        for seed in range(200):
            world = scene.sample(seed, random.Random(seed).choice((16, 64, 256)))
            self.assertEqual([s.start for s in world.scenes] + [world.frames], [0] + [s.stop for s in world.scenes])
            for a, b in zip(world.cards, world.cards[1:]):
                self.assertLess(a.stop, b.start)
            self.assertEqual(len({c.colour for c in world.cards}), len(world.cards))
            movers = {s.place.background: s.place.mover.name for s in world.scenes}
            self.assertEqual(len(set(movers.values())), len(movers))

    def test_a_still_video_has_long_stretches_and_cuts(self):
        for seed in range(20):
            world = scene.sample(f"still/{seed}", 512, depths=[0.3, 0.7], still=True)
            lengths = sorted(s.stop - s.start for s in world.scenes)
            self.assertEqual((sum(lengths), lengths[:scene.SHORT]), (512, [8] * scene.SHORT))
            self.assertEqual(len(world.cards), 2)
            p = scene.parameters(world)
            for s in world.scenes:
                free = [f for f in range(s.start, s.stop) if all(not c.start <= f < c.stop for c in world.cards)]
                self.assertEqual(len({p[f].tobytes() for f in free}), 1)

    def test_smooth_drawing_passes_through_the_sampled_frames(self):
        world = scene.sample(3, 32)
        np.testing.assert_allclose(scene.parameters(world, 4)[::4], scene.parameters(world), atol=2e-3)

    def test_some_scenes_return(self):
        self.assertTrue(any(len({s.place.background for s in w.scenes}) < len(w.scenes)
                            for w in (scene.sample(i, 256) for i in range(20))))


class Questions(unittest.TestCase):
    def test_ten_wordings_of_every_kind(self):
        for kind in phrases.PHRASES:
            self.assertGreaterEqual(phrases.wordings(kind), 10, kind)

    def test_every_kind_can_be_asked(self):
        missing = set(questions.KIND_SKILL)
        for seed in range(300):
            world = scene.sample(seed, 64, image=seed % 3 == 0)
            _, facts = passages.write(random.Random(seed), [8, 16], [1, 1])
            asker = questions.Asker(questions.seeded(seed), world, facts)
            missing -= {k for k in missing if k.startswith("image") == world.is_image and asker.ask(k)}
        self.assertEqual(missing, set())

    def test_answers_follow_the_world(self):
        for seed in range(100):
            world = scene.sample(seed, 64)
            asker = questions.Asker(questions.seeded(seed), world)
            self.assertEqual(asker.ask("first_thing").answer, names.with_article(world.scenes[0].place.mover.name))
            self.assertEqual(asker.ask("count_cards").answer, str(len(world.cards)))
            for item in questions.ask_many(questions.seeded(seed), world, 20, questions.VIDEO_SKILLS):
                for start, stop in item.evidence:
                    self.assertTrue(0 <= start < stop <= world.frames, item)

    def test_a_stream_knows_nothing_later(self):
        for seed in range(50):
            world = scene.sample(seed, 64)
            frame = next(f for f in range(32, 65, 2) if world.can_stop_at(f))
            for item in questions.ask_many(questions.seeded(seed), world.until(frame), 12, questions.CORE, whole=False):
                self.assertTrue(all(stop <= frame for _, stop in item.evidence))

    def test_a_crowd_of_facts_and_their_twins(self):
        texts, facts = passages.crowd(random.Random(3), [4, 8, 12], [5, 0, 7], 45, 20)
        self.assertEqual(len({(f.name, f.kind) for f in facts}), 45)
        sentences = [t for text in texts for t in text.strip().split(". ")]
        self.assertEqual(len(sentences), 5 + 0 + 7 + 45 + 20)
        self.assertEqual(sum(" near the " in t and any(f" {w} near" in t for w in ("man", "woman", "boy", "girl", "guest", "painter"))
                             for t in sentences), 20)
        for fact in facts:  # in the passage that it says it is in, once
            told = [t for t in texts[[4, 8, 12].index(fact.frame)].split(". ") if fact.name in t]
            value = fact.answer.removeprefix("in a ").removeprefix("in an ").removesuffix(" house")
            self.assertTrue(any(value in t for t in told), fact)
        with self.assertRaises(ValueError):
            passages.crowd(random.Random(1), [0], [1], 46, 0)

    def test_caption_score(self):
        self.assertEqual(captions.score("A dog. A cat.", "A dog. A cat."), 1.0)
        self.assertAlmostEqual(captions.score("A dog. A cat.", "A dog. A cow."), 0.5)
        self.assertEqual(captions.score("A dog.", ""), 0.0)

    def test_two_things_of_a_picture_are_told_in_reading_order(self):
        told = 0
        for i in range(40):
            world = scene.sample(f"picture/{i}", 1, image=True)
            place, words = world.scenes[0].place, captions.picture_caption(world).split(" on ")[0].lower()
            other = captions.picture_caption(world, swapped=True)
            self.assertEqual(other is None, not place.still or place.still_count > 1)
            if not other:
                self.assertTrue(words.startswith(names.with_article(place.mover.name).lower()))
                continue
            pair = [(place.mover, place.look["mover"]), (place.still, place.look["still"][0])]
            first = min(pair, key=lambda p: (p[1][1] // 28, p[1][0]))[0]
            self.assertTrue(words.startswith(names.with_article(first.name).lower()), words)
            self.assertEqual(sorted(words.split(" and ")), sorted(other.split(" on ")[0].lower().split(" and ")))
            told += 1
        self.assertGreater(told, 5)


class Drawing(unittest.TestCase):
    def test_frames_are_pictures(self):
        renderer = render.Renderer()
        for grid in ((4, 4), (4, 7), (8, 5)):
            rows = torch.from_numpy(scene.parameters(scene.sample("d", 16, grid)))
            frames = renderer.draw(rows, grid[0] * 28, grid[1] * 28)
            self.assertEqual(frames.shape, (16, 3, grid[0] * 28, grid[1] * 28))
            self.assertTrue(0 <= frames.min() and frames.max() <= 1 and frames.std() > 0.05)
            worn = renderer.worn(frames, rows)
            self.assertLess((worn - frames).abs().mean(), 0.2)

    def test_windows_draw_what_the_definition_says(self):
        renderer = render.Renderer()
        for seed, grid in enumerate(((4, 4), (4, 7), (8, 5), (6, 6))):
            rows = torch.from_numpy(scene.parameters(scene.sample(f"windows/{seed}", 64, grid, cards=3)))[::5]
            whole = render.draw_whole(rows, grid[0] * 28, grid[1] * 28, renderer.table)
            torch.testing.assert_close(renderer.draw(rows, grid[0] * 28, grid[1] * 28), whole, atol=2e-3, rtol=0)  # less than half a level of 255

    def test_patches_are_in_merge_order(self):
        frames = torch.rand(2, 3, 56, 84)
        mean, deviation = torch.tensor(render.MEAN), torch.tensor(render.DEVIATION)
        p = render.patches(frames).view(24, 3, 2, 14, 14)
        # patch 7: second block of the first row of blocks, lower right quarter
        wanted = (frames[:, :, 14:28, 42:56].transpose(0, 1) - mean.view(3, 1, 1, 1)) / deviation.view(3, 1, 1, 1)
        torch.testing.assert_close(p[7], wanted)

    @unittest.skipUnless(shutil.which("ffmpeg"), "needs the ffmpeg tool")
    def test_through_a_file(self):
        world, renderer = scene.sample("file", 16), render.Renderer()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.mp4"
            video_file.write(path, world, renderer, 112, 112)
            pixels, fps = video_file.read(path)
        drawn = renderer.draw(torch.from_numpy(scene.parameters(world)), 112, 112).permute(0, 2, 3, 1) * 255
        self.assertEqual((pixels.shape, fps), ((16, 112, 112, 3), 2.0))
        self.assertLess(np.abs(pixels - drawn.numpy()).mean(), 8)


if __name__ == "__main__":
    unittest.main()
