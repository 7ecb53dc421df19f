// Talks to the server. Everything that can go wrong comes out as an Error whose message a person
// can read.

export class KeyNeeded extends Error {}

async function failure(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not JSON: the status has to do */ }
  return response.status === 401 ? new KeyNeeded(message) : new Error(message);
}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached.");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export const get = async (path) => (await call(path)).json();
export const text = async (path) => (await call(path)).text();
export const remove = async (path) => (await call(path, { method: "DELETE" })).json();

export const post = async (path, body) => (await call(path, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
})).json();

// Sends a file and tells how much of it has gone (0 to 1).
export function upload(file, onShare) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", `/v1/videos?name=${encodeURIComponent(file.name)}`);
    request.setRequestHeader("Content-Type", file.type || "application/octet-stream");
    request.upload.onprogress = (event) => event.lengthComputable && onShare(event.loaded / event.total);
    request.onerror = () => reject(new Error("The upload broke off."));
    request.onload = () => {
      let answer = {};
      try {
        answer = JSON.parse(request.responseText);
      } catch { /* told below */ }
      if (request.status === 201) return resolve(answer);
      const message = answer.error?.message ?? `The server answered ${request.status}.`;
      reject(request.status === 401 ? new KeyNeeded(message) : new Error(message));
    };
    request.send(file);
  });
}

// Yields {event, data} of a stream of server-sent events; comments come as {comment}.
export async function* events(path, body, signal) {
  const response = await call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith(":")) {
        yield { comment: part.slice(1).trim() };
        continue;
      }
      let event = "message";
      let data = "";
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) event = line.slice(7);
        if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data === "[DONE]") return;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new Error(parsed.error.message);
      yield { event, data: parsed };
    }
  }
}
