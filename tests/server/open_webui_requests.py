"""What Open WebUI sends to a connection of the kind OpenAI API, field by field as the source of its release 0.12.4 has it;
the program itself is too large for a test.

    open_webui_requests.py PROGRAM SOURCE_DIR
"""
import base64
import json
import sys
import unittest
import urllib.error
import urllib.request
import zlib

from serving import Serving, patience

program = sys.argv[1]


def png(size=56):
    """A picture with a red and a blue half."""
    def chunk(kind, data):
        body = kind + data
        return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    row = b"\0" + b"\xff\0\0" * (size // 2) + b"\0\0\xff" * (size - size // 2)
    header = size.to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * size)) + chunk(b"IEND", b"")


class OpenWebUI(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.serving = Serving(program, "-m", "kinora-tiny", environment={"KINORA_API_KEY": "secret"})

    @classmethod
    def tearDownClass(cls):
        assert cls.serving.stop() == 0, cls.serving.logged()

    def send(self, path, body=None):
        request = urllib.request.Request(
            self.serving.url + "/v1" + path, json.dumps(body).encode() if body else None,
            {"Content-Type": "application/json", "Authorization": "Bearer secret",
             "X-OpenWebUI-User-Name": "A%20B", "X-OpenWebUI-Chat-Id": "1"})
        with urllib.request.urlopen(request, timeout=patience(120)) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    def streamed(self, **more):
        body = {"stream": True, "model": "kinora-tiny", "messages": [{"role": "user", "content": "Hello"}], **more}
        kind, text = self.send("/chat/completions", body)
        self.assertIn("text/event-stream", kind)
        lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        self.assertEqual(lines[-1], "[DONE]")
        return [json.loads(line) for line in lines[:-1]]

    def test_models_of_the_connection(self):
        kind, text = self.send("/models")
        self.assertIn("application/json", kind)
        self.assertEqual([(model["id"], model["object"]) for model in json.loads(text)["data"]],
                         [("kinora-tiny", "model")])

    def test_chat(self):
        chunks = self.streamed(stream_options={"include_usage": True}, max_tokens=12, temperature=0.5, top_p=0.9, seed=3)
        self.assertTrue("".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]))
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"] + chunks[-1]["usage"]["prompt_tokens"],
                         chunks[-1]["usage"]["total_tokens"])

    def test_picture_in_a_conversation(self):
        url = "data:image/png;base64," + base64.b64encode(png()).decode()
        said = [{"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "What colour?"},
                                             {"type": "image_url", "image_url": {"url": url}}]},
                {"role": "assistant", "content": "Red."}, {"role": "user", "content": "And on the right?"}]
        chunks = self.streamed(messages=said, stream_options={"include_usage": True}, max_tokens=8)
        self.assertGreater(chunks[-1]["usage"]["prompt_tokens_details"]["visual_tokens"], 0)

    def test_title_and_tags(self):
        for task in ("### Task:\nGenerate a concise title. JSON format: { \"title\": \"…\" }", "### Task:\nGenerate tags."):
            body = {"model": "kinora-tiny", "messages": [{"role": "user", "content": task}], "stream": False,
                    "max_tokens": 24}
            _, text = self.send("/chat/completions", body)
            self.assertEqual(json.loads(text)["choices"][0]["message"]["role"], "assistant")

    # With function calling as it stands, Open WebUI's page adds tools of its own: docs/server.md says what to set.
    def test_tools_are_refused_by_name(self):
        tool = {"type": "function", "function": {"name": "get_current_timestamp", "parameters": {"type": "object"}}}
        with self.assertRaises(urllib.error.HTTPError) as error:
            self.streamed(tools=[tool])
        self.assertEqual(error.exception.code, 400)
        self.assertEqual(json.loads(error.exception.read())["error"]["param"], "tools")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
