#!/usr/bin/env python3
"""Asks `kinora serve` about a video with OpenAI's own client, and prints the answer as it comes.

    ask_server.py talk.mp4 "What is the talk about?"        needs: pip install openai

The server's address is $KINORA_SERVER (http://127.0.0.1:8080), its key $KINORA_API_KEY.
"""
import base64
import os
import sys

import openai


def ask(server, video, question):
    client = openai.OpenAI(base_url=server + "/v1", api_key=os.environ.get("KINORA_API_KEY", "none"))
    with open(video, "rb") as file:
        url = "data:video/mp4;base64," + base64.b64encode(file.read()).decode()
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        stream=True,
        messages=[{"role": "user", "content": [{"type": "video_url", "video_url": {"url": url}},
                                               {"type": "text", "text": question}]}])
    evidence = []
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
            evidence = getattr(choice, "evidence", None) or evidence
    print()
    for span in evidence:
        print(f"  {span['start']:.1f} s to {span['end']:.1f} s ({100 * span['share']:.0f} %)")


if len(sys.argv) != 3:
    sys.exit(__doc__)
address = os.environ.get("KINORA_SERVER", "http://127.0.0.1:8080")
try:
    ask(address, *sys.argv[1:])
except openai.APIConnectionError:
    sys.exit(f"{address} does not answer: is kinora serve running?")
except openai.APIError as error:
    sys.exit(error.message)
except OSError as error:
    sys.exit(str(error))
