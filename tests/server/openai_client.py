"""OpenAI's own Python client, unmodified, against `kinora serve` with the bundled model and clip.

    openai_client.py PROGRAM SOURCE_DIR
"""
import base64
import pathlib
import sys
import unittest

import openai

from serving import Serving

program, source = sys.argv[1], pathlib.Path(sys.argv[2])
clip = source / "models" / "demo.mp4"
look = {"mm_processor_kwargs": {"num_frames": 8}}


def data_url(path, kind="video/mp4"):
    return f"data:{kind};base64," + base64.b64encode(path.read_bytes()).decode()


def about_the_clip(text, **part):
    part = part or {"video_url": {"url": data_url(clip)}}
    return [{"role": "user", "content": [{"type": "video_url", **part}, {"type": "text", "text": text}]}]


class OpenAIClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.serving = Serving(program, "-m", "kinora-tiny", "--media-root", str(source / "models"),
                              environment={"KINORA_API_KEY": "secret"})
        cls.client = openai.OpenAI(base_url=cls.serving.url + "/v1", api_key="secret", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.serving.stop() == 0, cls.serving.logged()

    def ask(self, messages, **options):
        options = {"temperature": 0, "max_tokens": 16, "extra_body": look, **options}
        return self.client.chat.completions.create(model="kinora-tiny", messages=messages, **options)

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual([model.id for model in models], ["kinora-tiny"])
        self.assertEqual(self.client.models.retrieve("kinora-tiny").id, "kinora-tiny")

    def test_text(self):
        answer = self.ask([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}])
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_video_is_read_once(self):
        first = self.ask(about_the_clip("What happens in this video?"))
        details = first.usage.prompt_tokens_details
        self.assertGreater(details.visual_tokens, 0)
        again = self.ask(about_the_clip("Which colours are there?"))
        self.assertGreaterEqual(again.usage.prompt_tokens_details.cached_tokens, details.visual_tokens)
        # The same file by its path, by a uuid, and as llama.cpp's clients send it.
        by_path = self.ask(about_the_clip("What?", video_url={"url": f"file://{clip}"}, uuid="clip"))
        self.assertEqual(by_path.usage.prompt_tokens_details.visual_tokens, details.visual_tokens)
        by_uuid = self.ask(about_the_clip("And then?", uuid="clip"))
        self.assertGreaterEqual(by_uuid.usage.prompt_tokens_details.cached_tokens, details.visual_tokens)
        bare = base64.b64encode(clip.read_bytes()).decode()
        part = {"type": "input_video", "input_video": {"data": bare}}
        bare = self.ask([{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}])
        self.assertGreaterEqual(bare.usage.prompt_tokens_details.cached_tokens, details.visual_tokens)

    def test_conversation_with_evidence(self):
        messages = about_the_clip("What happens in this video?")
        first = self.ask(messages)
        self.assertTrue(first.choices[0].evidence)
        span = first.choices[0].evidence[0]
        self.assertLess(span["start"], span["end"])
        messages.append(first.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "user", "content": "And after that?"})
        second = self.ask(messages)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, first.usage.prompt_tokens - 8)

    def test_streaming(self):
        messages = about_the_clip("What happens in this video?")
        whole = self.ask(messages)
        chunks = list(self.ask(messages, stream=True, stream_options={"include_usage": True}))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[-2].choices[0].finish_reason, whole.choices[0].finish_reason)

    def test_choices_logprobs_seed_and_stop(self):
        options = {"n": 2, "temperature": 1, "seed": 7, "logprobs": True, "top_logprobs": 3}
        answer = self.ask(about_the_clip("What?"), **options)
        self.assertEqual(len(answer.choices), 2)
        for choice in answer.choices:
            for token in choice.logprobs.content:
                self.assertLessEqual(token.logprob, 0)
                self.assertEqual(len(token.top_logprobs), 3)
        again = self.ask(about_the_clip("What?"), **options)
        self.assertEqual([c.message.content for c in again.choices], [c.message.content for c in answer.choices])
        text = self.ask(about_the_clip("What happens in this video?")).choices[0].message.content
        stopped = self.ask(about_the_clip("What happens in this video?"), stop=[text[3:5]])
        self.assertEqual(stopped.choices[0].message.content, text[: text.index(text[3:5])])

    def test_responses(self):
        part = {"type": "input_video", "input_video": {"url": f"file://{clip}"}}
        asked = [{"role": "user", "content": [part, {"type": "input_text", "text": "What happens in this video?"}]}]
        options = {"model": "kinora-tiny", "input": asked, "temperature": 0, "max_output_tokens": 16,
                   "extra_body": look}
        response = self.client.responses.create(**options)
        self.assertIn(response.status, ("completed", "incomplete"))
        self.assertTrue(response.output_text)
        events = list(self.client.responses.create(**options, stream=True))
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"),
                         response.output_text)
        self.assertIn(events[-1].type, ("response.completed", "response.incomplete"))
        self.assertEqual(events[-1].response.usage.output_tokens, response.usage.output_tokens)
        with self.assertRaises(openai.BadRequestError) as error:
            self.client.responses.create(model="kinora-tiny", input="x", previous_response_id="resp_1")
        self.assertEqual(error.exception.param, "previous_response_id")

    def test_errors(self):
        wrong = openai.OpenAI(base_url=self.serving.url + "/v1", api_key="wrong", max_retries=0)
        with self.assertRaises(openai.AuthenticationError):
            wrong.models.list()
        with self.assertRaises(openai.NotFoundError) as error:
            self.client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
        self.assertEqual(error.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as error:
            self.ask([{"role": "user", "content": "x"}], frequency_penalty=1)
        self.assertEqual(error.exception.param, "frequency_penalty")
        with self.assertRaises(openai.BadRequestError) as error:
            self.ask([{"role": "user", "content": "x"}], extra_body={"beams": 3})
        self.assertIn("beams", str(error.exception))
        with self.assertRaises(openai.BadRequestError) as error:
            self.ask(about_the_clip("What?", video_url={"url": "data:video/mp4;base64,bm90IGEgdmlkZW8="}))
        self.assertEqual(error.exception.code, "invalid_media")
        with self.assertRaises(openai.PermissionDeniedError):
            self.ask(about_the_clip("What?", video_url={"url": "file:///etc/passwd"}))
        wrong.close()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
