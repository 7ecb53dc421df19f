"""LangChain's ChatOpenAI against `kinora serve` with the bundled model and clip, with the settings of docs/server.md.

    langchain_client.py PROGRAM SOURCE_DIR
"""
import pathlib
import sys
import unittest

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

from serving import Serving

program, source = sys.argv[1], pathlib.Path(sys.argv[2])
clip = source / "models" / "demo.mp4"


def about_the_clip(text):
    return HumanMessage([{"type": "video_url", "video_url": {"url": f"file://{clip}"}}, {"type": "text", "text": text}])


class LangChain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.serving = Serving(program, "-m", "kinora-tiny", "--media-root", str(source / "models"),
                              environment={"KINORA_API_KEY": "secret"})

    @classmethod
    def tearDownClass(cls):
        assert cls.serving.stop() == 0, cls.serving.logged()

    def model(self, **settings):
        settings = {"temperature": 0, "max_tokens": 16, "max_retries": 0,
                    "extra_body": {"mm_processor_kwargs": {"num_frames": 8}}, **settings}
        return ChatOpenAI(base_url=self.serving.url + "/v1", api_key="secret", model="kinora-tiny", **settings)

    def test_text(self):
        answer = self.model().invoke([SystemMessage("Be brief."), HumanMessage("Hello")])
        self.assertTrue(answer.text)
        used = answer.usage_metadata
        self.assertEqual(used["total_tokens"], used["input_tokens"] + used["output_tokens"])

    def test_video_conversation(self):
        model, asked = self.model(), about_the_clip("What happens in this video?")
        first = model.invoke([asked])
        self.assertTrue(first.text)
        second = model.invoke([asked, first, HumanMessage("And after that?")])
        cached = second.usage_metadata["input_token_details"]["cache_read"]
        self.assertGreater(cached, first.usage_metadata["input_tokens"] - 8)

    def test_streaming(self):
        asked = [about_the_clip("What happens in this video?")]
        whole = self.model().invoke(asked)
        for model in (self.model(), self.model(stream_usage=True)):
            chunks = list(model.stream(asked))
            self.assertGreater(len(chunks), 3)
            self.assertEqual("".join(chunk.text for chunk in chunks), whole.text)
        self.assertEqual(sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata),
                         whole.usage_metadata["output_tokens"])

    def test_settings(self):
        asked = [about_the_clip("What happens in this video?")]
        settings = {"temperature": 1, "seed": 7, "top_p": 0.9, "logprobs": True, "top_logprobs": 2}
        answers = [self.model(**settings).invoke(asked) for _ in range(2)]
        self.assertEqual(answers[0].text, answers[1].text)
        for token in answers[0].response_metadata["logprobs"]["content"]:
            self.assertEqual(len(token["top_logprobs"]), 2)
        text = self.model().invoke(asked).text
        self.assertEqual(self.model(stop=[text[3:5]]).invoke(asked).text, text[: text.index(text[3:5])])
        several = self.model(n=2, temperature=1, seed=7).generate([asked]).generations[0]
        self.assertEqual(len(several), 2)

    def test_responses_and_batches(self):
        asked = [HumanMessage([{"type": "text", "text": "Hello"}])]
        self.assertTrue(self.model(use_responses_api=True).invoke(asked).text)
        answers = self.model().batch([asked, [about_the_clip("What?")]])
        self.assertEqual(len(answers), 2)

    def test_what_is_refused_says_so(self):
        with self.assertRaises(Exception) as error:
            self.model(frequency_penalty=1).invoke([HumanMessage("x")])
        self.assertIn("frequency_penalty", str(error.exception))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
