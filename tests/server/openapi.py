"""schemathesis against the OpenAPI document that `kinora serve` serves: whatever it sends, no crash
and no answer that the document does not know. Once as anybody would, and once about a video, a stream
and a memory that are there; in the end every operation has been answered as it should be when all goes well.

    openapi.py PROGRAM SOURCE_DIR
"""
import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import jsonschema_rs  # schemathesis brings it along

from serving import Serving, patience

program, source = sys.argv[1], pathlib.Path(sys.argv[2])
clip = source / "models" / "demo.mp4"


def call(serving, method, path, body=None, kind="application/json"):
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(serving.url + path, data, {"Content-Type": kind} if data else {}, method=method)
    with urllib.request.urlopen(request, timeout=patience(120)) as response:
        return json.loads(response.read())


def check(document, described, value):
    """What is sent or comes back is what the document says."""
    schema = described["content"]["application/json"]["schema"]
    jsonschema_rs.validator_for({**schema, "components": document["components"]}).validate(value)


def check_methods(serving, paths):
    """The server says the same methods of every path as the document does."""
    for path, operations in paths.items():
        request = urllib.request.Request(serving.url + path.replace("{id}", "x"), method="PATCH")
        try:
            urllib.request.urlopen(request)
            sys.exit(f"{path} takes PATCH")
        except urllib.error.HTTPError as error:
            allowed = {method.strip().lower() for method in error.headers.get("Allow", "").split(",")}
            if error.code != 405 or allowed != set(operations) - {"parameters"}:
                sys.exit(f"{path}: {error.code}, {allowed} and not {set(operations)}")


def run_schemathesis(document, serving, folder, *flags):
    result = subprocess.run(
        [pathlib.Path(sys.executable).parent / "schemathesis", "run", document, "--url", serving.url, "--checks",
         "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
         "--max-examples", "25", "--seed", "1", "--request-timeout", str(patience(60)), *flags],
        check=False, cwd=folder)
    if result.returncode != 0:
        sys.exit(result.returncode)


def make_some(serving):
    """A video, a stream that has shown something, and a memory, by the folders of the API."""
    video = call(serving, "POST", "/v1/videos?name=demo.mp4", clip.read_bytes(), "video/mp4")["id"]
    stream = call(serving, "POST", "/v1/streams", {"url": video, "speed": 20})["id"]
    memory = call(serving, "POST", "/v1/memories", {"video": video, "mm_processor_kwargs": {"num_frames": 8}})["id"]
    end = time.monotonic() + patience(120)
    while not call(serving, "GET", f"/v1/streams/{stream}")["frames"]:
        if time.monotonic() > end:
            sys.exit("nothing is seen of the stream")
        time.sleep(0.1)
    return {"videos": video, "streams": stream, "memories": memory}


def about(document, made):
    """The document with the ids of what is there, without what would delete it."""
    known = copy.deepcopy(document)
    known["paths"] = {}
    for path, operations in document["paths"].items():
        found = re.match(r"/v1/(\w+)/\{id\}", path)
        if not found or found.group(1) not in made:
            continue
        operations = copy.deepcopy(operations)
        operations.pop("delete", None)
        operations["parameters"][0]["schema"] = {"enum": [made[found.group(1)]]}
        known["paths"][path] = operations
    return known


def delete_all(serving, document, made):
    for folder, name in made.items():
        said = call(serving, "DELETE", f"/v1/{folder}/{name}")
        check(document, document["paths"][f"/v1/{folder}/{{id}}"]["delete"]["responses"]["200"], said)


def check_coverage(document, log, made):
    """Every operation was answered well at least once."""
    done = set()
    for line in log.splitlines():
        if not line.startswith("{"):
            continue
        entry = json.loads(line)
        path = entry["path"]
        for name in [*made.values(), "kinora-tiny"]:
            path = path.replace(f"/{name}", "/{id}")
        if entry["status"] < 300:
            done.add((entry["method"].lower(), path))
    wanted = {(method, path) for path, operations in document["paths"].items() for method in operations
              if method != "parameters"}
    wanted.discard(("get", "/v1/streams/{id}/frames"))  # a WebSocket: tests/server/streams.py
    if wanted - done:
        sys.exit(f"never answered well: {sorted(wanted - done)}")


with tempfile.TemporaryDirectory() as data:
    with Serving(program, "-m", "kinora-tiny", "--data", data, "--max-tokens", "16") as serving:
        document = call(serving, "GET", "/openapi.json")
        check_methods(serving, document["paths"])
        run_schemathesis(serving.url + "/openapi.json", serving, data)
        made = make_some(serving)
        pathlib.Path(data, "known.json").write_text(json.dumps(about(document, made)))
        # Else it tries whether methods that are not in the document, as DELETE now, do anything.
        pathlib.Path(data, "schemathesis.toml").write_text('[phases.coverage]\nunexpected-methods = ["TRACE"]\n')
        run_schemathesis("known.json", serving, data)
        # What it may send in any order and rarely gets right by luck.
        content = [{"type": "input_video", "file_id": made["videos"]}, {"type": "input_text", "text": "What?"}]
        for path, body in (("/v1/responses", {"input": [{"role": "user", "content": content}]}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})):
            body["mm_processor_kwargs"] = {"num_frames": 8}
            operation = document["paths"][path]["post"]
            check(document, operation["requestBody"], body)
            check(document, operation["responses"]["200"], call(serving, "POST", path, body))
        call(serving, "GET", "/v1/models/kinora-tiny")
        delete_all(serving, document, made)
        code = serving.stop()
        check_coverage(document, serving.logged(), made)
        if code != 0:
            sys.exit(f"the server ended with {code}: {serving.logged()[-2000:]}")
