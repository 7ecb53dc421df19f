"""Kills `kinora serve` with SIGKILL, between requests and in the middle of them, and starts it again:
what was acknowledged is there and can be asked about, and nothing is half there. Ends it with SIGTERM in the middle
of an answer, which is finished before it ends.

    restart.py PROGRAM SOURCE_DIR
"""
import json
import pathlib
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

from serving import Serving, patience

program, source = sys.argv[1], pathlib.Path(sys.argv[2])
clip = (source / "models" / "demo.mp4").read_bytes()


def call(serving, method, path, body=None, kind="application/json"):
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(serving.url + path, data, {"Content-Type": kind}, method=method)
    with urllib.request.urlopen(request, timeout=patience(120)) as response:
        return json.loads(response.read())


def ask(serving, name):
    part = {"type": "video_url", "uuid": name}
    body = {"temperature": 0, "max_tokens": 8,
            "messages": [{"role": "user", "content": [part, {"type": "text", "text": "What happens?"}]}]}
    return call(serving, "POST", "/v1/chat/completions", body)["choices"][0]["message"]["content"]


def listed(serving, what):
    return {one["id"] for one in call(serving, "GET", f"/v1/{what}")["data"]}


class Restart(unittest.TestCase):
    def setUp(self):
        self.data = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.data.cleanup()

    def start(self):
        return Serving(program, "-m", "kinora-tiny", "--data", self.data.name, "--quiet",
                       environment={"XDG_DATA_HOME": self.data.name})

    def test_what_was_saved_is_there(self):
        with self.start() as first:
            video = call(first, "POST", "/v1/videos?name=demo.mp4", clip, "video/mp4")["id"]
            said = ask(first, video)
            memory = call(first, "POST", "/v1/memories", {"video": video, "name": "talk"})["id"]
            first.stop(signal.SIGKILL)
        with self.start() as second:
            self.assertEqual(listed(second, "videos"), {video})
            self.assertEqual(listed(second, "memories"), {memory})
            self.assertEqual(ask(second, memory), said)
            self.assertEqual(ask(second, video), said)
            self.assertEqual(second.stop(), 0)

    def test_killed_at_any_moment(self):
        luck = random.Random(5)
        with self.start() as serving:
            video = call(serving, "POST", "/v1/videos?name=demo.mp4", clip, "video/mp4")["id"]
            serving.stop(signal.SIGKILL)
        saved = set()
        for _ in range(6):
            with self.start() as serving:
                self.assertEqual(listed(serving, "videos"), {video})
                there = listed(serving, "memories")
                self.assertLessEqual(saved, there)
                for one in there:  # whole, whether it was acknowledged or not
                    self.assertEqual(call(serving, "GET", f"/v1/memories/{one}")["id"], one)

                def save():
                    try:
                        while True:
                            saved.add(call(serving, "POST", "/v1/memories", {"video": video})["id"])
                    except (urllib.error.URLError, OSError, ValueError):
                        pass  # it is dead

                saving = threading.Thread(target=save)
                saving.start()
                time.sleep(patience(luck.uniform(0.2, 1.5)))
                serving.stop(signal.SIGKILL)
                saving.join()
        with self.start() as serving:
            self.assertLessEqual(saved, listed(serving, "memories"))
            for one in list(saved)[:2]:
                self.assertTrue(ask(serving, one))


class End(unittest.TestCase):
    def test_an_answer_is_finished(self):
        with Serving(program, "-m", "kinora-tiny", "--drain", str(patience(120))) as serving:
            body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True, "ignore_eos": True,
                    "max_tokens": 2000}
            request = urllib.request.Request(serving.url + "/v1/chat/completions", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=patience(120)) as response:
                self.assertTrue(response.readline().startswith(b"data: {"))
                serving.process.send_signal(signal.SIGTERM)
                self.assertEqual(self.becomes(serving, "/readyz", 503), "draining\n")
                self.assertEqual(json.loads(self.becomes(serving, "/v1/models", 503))["error"]["code"], "draining")
                self.assertEqual(self.becomes(serving, "/healthz", 200), "ok\n")
                lines = [line for line in response if line.strip()]
            self.assertEqual(lines[-1], b"data: [DONE]\n")
            self.assertIn(b'"finish_reason":"length"', lines[-2])
            self.assertEqual(serving.process.wait(timeout=patience(60)), 0, serving.logged())

    def becomes(self, serving, path, status):
        """The body, once the answer has this status."""
        end = time.monotonic() + patience(60)
        while True:
            try:
                with urllib.request.urlopen(serving.url + path, timeout=patience(60)) as response:
                    got, text = response.status, response.read().decode()
            except urllib.error.HTTPError as error:
                got, text = error.code, error.read().decode()
            if got == status:
                return text
            self.assertLess(time.monotonic(), end, f"{path}: {got} {text}")
            time.sleep(0.01)

    def test_only_this_machine_is_let_in(self):
        with Serving(program, "-m", "kinora-tiny") as serving:
            with socket.create_connection(("127.0.0.1", serving.port)):
                pass
            # Another address of the loopback is none of the one it listens on.
            with self.assertRaises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", serving.port))
            self.assertEqual(serving.stop(), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
