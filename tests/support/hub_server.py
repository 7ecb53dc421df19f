"""A hub on the loopback interface that behaves as Hugging Face's does, for the tests of `pull`.

    python3 hub_server.py FOLDER [TROUBLE…]

Serves FOLDER/ORG/NAME as models, prints two ports (hub, storage) on one line, and runs until it is
killed. As on the real hub, small files come from the hub itself with Git's hash as their etag; large
ones (here: .safetensors) are redirected to a storage on another port that refuses an Authorization
header. Every request is a line in FOLDER/log: port, method, path, range. Models with these names
have their ways: `gated` needs the token "good" (401, 403 and an X-Error-Code), `private` looks as if
it were not there without it. TROUBLE is any of

    cut        each body that begins at byte 0 breaks off in the middle, once per file
    stall=N    the first N requests are answered 429 with Retry-After: 0
    fail=N     the first N requests are answered 503
    no-range   the storage knows no ranges
    damage     large files come with one byte changed
    damage-small   the same of small files
    renamed    every model answers from /new/…: relative redirects
    long       large files are longer than promised
    evil       a file of the listing is called ../../evil
    deep       the listing nests a hundred lists
    dead       large files break off after the first bytes, every time
"""
import hashlib
import json
import pathlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

folder = pathlib.Path(sys.argv[1])
troubles = dict((part.split("=") + ["1"])[:2] for part in sys.argv[2:])
budget = {name: int(count) for name, count in troubles.items() if name in ("stall", "fail")}
cut = set()
lock = threading.Lock()
log = open(folder / "log", "a", buffering=1)


def files_of(name):
    root = folder / name
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def commit_of(name):
    """Changes with the content, as a commit does."""
    digest = hashlib.sha1(name.encode())
    for path in files_of(name):
        digest.update(path.encode() + (folder / name / path).read_bytes())
    return digest.hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, status, headers=(), body=b""):
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        if not any(key == "Content-Length" for key, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code):
        self.answer(status, [("X-Error-Code", code), ("Retry-After", "0")], b'{"error": "no"}')

    def in_trouble(self):
        with lock:
            for name, status in (("stall", 429), ("fail", 503)):
                if budget.get(name, 0) > 0:
                    budget[name] -= 1
                    self.answer(status, [("Retry-After", "0")])
                    return True
        return False

    def note(self):
        log.write(f"{self.server.server_port} {self.command} {self.path} {self.headers.get('Range', '-')}\n")

    def send_file(self, path, etag, headers, ranges=True):
        """A body, from the byte that was asked for."""
        content = path.read_bytes()
        small = self.server is hub
        if ("damage-small" if small else "damage") in troubles and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        if "long" in troubles and not small:
            content += b"and more"
        asked = self.headers.get("Range")
        first = int(asked[len("bytes=") :].split("-")[0]) if asked and ranges else 0
        if first >= len(content) > 0:
            return self.answer(416)
        headers = [*headers, ("ETag", f'"{etag}"'), ("Content-Length", str(len(content) - first))]
        if asked and ranges:
            headers.append(("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}"))
        body = content[first:]
        with lock:
            breaks = "cut" in troubles and first == 0 and str(path) not in cut and len(content) > 1
            if breaks:
                cut.add(str(path))
        if "dead" in troubles and not small:
            breaks, body = True, body[:0]
        elif breaks:
            body = body[: len(body) // 2]
        self.answer(206 if asked and ranges else 200, headers, body)
        if breaks and self.command != "HEAD":
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True

    def do_HEAD(self):
        self.do_GET()


class Hub(Handler):
    def do_GET(self):
        self.note()
        if self.in_trouble():
            return
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization", "")
        moved = path.startswith("/new/")
        if moved:
            path = path[len("/new") :]
        about_files = path.startswith("/api/models/") and "/tree/" in path
        if path.startswith("/api/models/"):
            name, revision = path[len("/api/models/") :].split("/tree/" if about_files else "/revision/")
        elif "/resolve/" in path:
            name, rest = path[1:].split("/resolve/", 1)
            revision, file = rest.split("/", 1)
        else:
            return self.refuse(404, "")
        if token not in ("", "Bearer good"):
            return self.answer(401, [("X-Error-Message", "Invalid credentials in Authorization header")])
        if not (folder / name).is_dir() or name.endswith("private") and not token:
            return self.refuse(404 if token else 401, "RepoNotFound")
        if name.endswith("gated") and not token:
            return self.refuse(401, "GatedRepo")
        if name.endswith("closed"):
            return self.refuse(403, "GatedRepo")
        commit = commit_of(name)
        if revision not in ("main", "v1", "refs/pr/1", commit):
            return self.refuse(404, "RevisionNotFound")
        if about_files:  # newer official clients ask this instead
            return self.answer(200, [("Content-Type", "application/json")], json.dumps([
                {"type": "file", "path": file, "size": (folder / name / file).stat().st_size, "oid": "0" * 40}
                for file in files_of(name)]).encode())
        if path.startswith("/api/"):
            siblings = [{"rfilename": file} for file in files_of(name)]
            if "evil" in troubles:
                siblings.append({"rfilename": "../../evil"})
            listing = {"id": name, "sha": commit, "siblings": siblings}
            if "deep" in troubles:
                listing["more"] = json.loads("[" * 100 + "]" * 100)
            return self.answer(200, [], json.dumps(listing).encode())
        if "renamed" in troubles and not moved:
            return self.answer(307, [("Location", "/new" + self.path)])
        target = folder / name / file
        if not target.is_file():
            return self.refuse(404, "EntryNotFound")
        content = target.read_bytes()
        about = [("X-Repo-Commit", commit)]
        if file.endswith(".safetensors"):
            digest = hashlib.sha256(content).hexdigest()
            about += [("X-Linked-Etag", f'"{digest}"'), ("X-Linked-Size", str(len(content))),
                      ("Location", f"http://127.0.0.1:{storage.server_port}/{name}/{file}"), ("ETag", '"pointer"')]
            return self.answer(302, about)
        digest = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        self.send_file(target, digest, about)


class Storage(Handler):
    def do_GET(self):
        self.note()
        if "Authorization" in self.headers:
            return self.answer(400)
        target = folder / unquote(self.path[1:])
        self.send_file(target, "of-the-storage", [("Accept-Ranges", "bytes")], "no-range" not in troubles)


hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
storage = ThreadingHTTPServer(("127.0.0.1", 0), Storage)
threading.Thread(target=storage.serve_forever, daemon=True).start()
print(hub.server_port, storage.server_port, flush=True)
hub.serve_forever()
