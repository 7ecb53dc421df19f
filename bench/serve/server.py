"""`kinora serve` for the benchmarks of this folder: started on a free port, given videos that ffmpeg makes, and
asked with streams whose tokens are timed."""
import http.client
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time


class Server:
    def __init__(self, program, model, *flags):
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen([program, "serve", "-m", model, "--port", "0", "--data", self.folder.name,
                                         "--quiet", *flags], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)/", line)
        if not found:
            sys.exit(f"kinora serve did not start: {line}")
        self.port = int(found.group(1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=60)

    def upload(self, seconds, size="320x240", number=0):
        """The id of a film of test pictures, each with a number of its own."""
        path = pathlib.Path(self.folder.name) / f"{number}.mp4"
        subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-f", "lavfi", "-i",
                        f"testsrc2=size={size}:rate=10:duration={seconds}", "-vf", f"hue=h={37 * number}", "-pix_fmt",
                        "yuv420p", str(path)], check=True)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", f"/v1/videos?name={path.name}", path.read_bytes(), {"Content-Type": "video/mp4"})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        if response.status != 201:
            sys.exit(f"{path.name} is not taken: {text}")
        return json.loads(text)["id"]

    def resident(self):
        """Megabytes of the server's process."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        for line in connection.getresponse().read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return float("nan")

    def kv_bytes(self):
        return sum(self.metric(f'kinora_kv_bytes{{tier="{tier}"}}') for tier in ("device", "host", "disk"))

    def ask(self, video, question, tokens, frames):
        """{status, retry, begin, first, end, tokens}: seconds of a clock that stands still for nobody."""
        body = {"messages": [{"role": "user", "content": [{"type": "video_url", "uuid": video},
                                                          {"type": "text", "text": question}]}],
                "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True},
                "mm_processor_kwargs": {"num_frames": frames}}
        said = {"begin": time.monotonic(), "tokens": 0}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        said["status"] = response.status
        if response.status != 200:
            said["retry"] = float(response.headers.get("Retry-After", 1))
            text = response.read()
            if response.status not in (429, 503):
                print(text.decode(errors="replace"), file=sys.stderr)
            connection.close()
            return said
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                print(event["error"], file=sys.stderr)
                said["status"] = 0
                break
            said.setdefault("first", time.monotonic())
            if event.get("usage"):
                said["tokens"] = event["usage"]["completion_tokens"]
        said["end"] = time.monotonic()
        said.setdefault("first", said["end"])
        connection.close()
        return said

    def write(self, video, question, tokens, frames):
        """The number of tokens of an answer that comes whole and goes on to the last of them."""
        body = {"messages": [{"role": "user", "content": [{"type": "video_url", "uuid": video},
                                                          {"type": "text", "text": question}]}],
                "max_tokens": tokens, "ignore_eos": True, "evidence": False,
                "mm_processor_kwargs": {"num_frames": frames}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {text.decode(errors='replace')}")
        return json.loads(text)["usage"]["completion_tokens"]


def first_token(said):
    return said["first"] - said["begin"]
