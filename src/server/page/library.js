// What there is to ask about: videos and pictures, streams that are watched, saved memories. All of
// them in one form, {id, kind, name, duration, …}.
import * as api from "./api.js";

const states = { waiting: "waiting for frames", live: "live", away: "interrupted", ended: "ended", failed: "failed" };

const asStream = (one) => ({ ...one, kind: "stream", duration: one.until, detail: states[one.state] ?? one.state });
const asMemory = (one) => ({
  ...one,
  kind: "memory",
  duration: Math.max(...one.inputs.map((input) => input.until), 0),
  detail: "memory",
});

export async function list() {
  const [streams, videos, memories] = await Promise.all(
    ["/v1/streams", "/v1/videos", "/v1/memories"].map(async (path) => (await api.get(path)).data));
  return [...streams.map(asStream), ...videos, ...memories.map(asMemory)];
}

export const watch = async (url) => asStream(await api.post("/v1/streams", { url }));
export const look = async (id) => asStream(await api.get(`/v1/streams/${id}`));
export const remember = async (of) => asMemory(await api.post("/v1/memories", { [of.kind]: of.id, name: of.name }));

const places = { stream: "streams", memory: "memories" };
export const remove = (of) => api.remove(`/v1/${places[of.kind] ?? "videos"}/${of.id}`);
