"""Kills `kinora serve` with SIGKILL, between requests and in the middle of them, and starts it again:
what was acknowledged is there and can be asked about, and nothing is half there.

    restart.py PROGRAM SOURCE_DIR
"""
import json
import pathlib
import random
import signal
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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
