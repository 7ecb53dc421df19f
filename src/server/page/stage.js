// What is shown, and the timeline under it: a player, a picture, the newest frame of a stream, or
// a few words about a memory.
import { get } from "./api.js";

const $ = (id) => document.getElementById(id);
const player = $("player");
const picture = $("picture");
const timeline = $("timeline");

export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  return hours > 0 ? `${hours}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}` : `${Math.floor(whole / 60)}:${two(whole % 60)}`;
}

export const still = (id, time, side) => `/v1/videos/${id}/picture?time=${time.toFixed(2)}&side=${side}`;

let video = null;
let now = null;
let spans = [];  // that the last answer looked at

const moves = () => video && video.kind !== "image";

function place(element, start, end) {
  const length = Math.max(video.duration, 0.001);
  element.style.left = `${(100 * start) / length}%`;
  element.style.width = `${(100 * Math.max(0, Math.min(length, end) - start)) / length}%`;
}

export function seek(time) {
  if (!video || video.kind !== "video") return;
  player.currentTime = time;
  player.focus({ preventScroll: true });
  player.scrollIntoView({ block: "nearest" });
}

// Marks what an answer looked at.
export function mark(seen) {
  spans = seen;
  timeline.querySelectorAll(".seen").forEach((one) => one.remove());
  if (!moves()) return;
  for (const span of spans) {
    const seen = document.createElement("div");
    seen.className = "seen";
    place(seen, span.start, span.end);
    timeline.append(seen);
  }
}

function showScenes(scenes) {
  timeline.querySelectorAll("button, .stretch").forEach((one) => one.remove());
  const shown = scenes.map((scene, i) => {
    const playable = video.kind === "video";
    const element = document.createElement(playable ? "button" : "div");
    element.classList.add("stretch");
    element.dataset.cluster = String((scene.cluster ?? 0) % 6);
    const name = `Scene ${i + 1}, ${clock(scene.start)} to ${clock(scene.end)}`;
    element.title = name;
    if (playable) {
      element.setAttribute("aria-label", name);
      element.addEventListener("click", () => seek(scene.start));
    }
    place(element, scene.start, scene.end);
    return element;
  });
  timeline.prepend(...shown);
}

async function loadScenes(of) {
  let scenes = [];
  try {
    scenes = (await get(`/v1/videos/${of.id}/scenes`)).data;
  } catch { /* a timeline without scenes is one scene */ }
  if (video !== of) return;
  showScenes(scenes.length > 0 ? scenes : [{ start: 0, end: of.duration }]);
}

// A stream has come further.
export function grow(of) {
  if (video?.id !== of.id) return;
  video = of;
  if (of.frames > 0) picture.src = `/v1/streams/${of.id}/picture?frame=${of.frames}`;
  showScenes([{ start: 0, end: of.duration }]);
  mark(spans);
}

export function show(of) {
  video = of;
  spans = [];
  player.hidden = of.kind !== "video";
  picture.hidden = of.kind !== "image" && of.kind !== "stream";
  $("memory").hidden = of.kind !== "memory";
  timeline.hidden = of.kind === "image";
  timeline.replaceChildren();
  if (of.kind !== "video") player.removeAttribute("src");
  if (of.kind === "image") {
    picture.alt = "The picture that is asked about";
    picture.src = `/v1/videos/${of.id}/content`;
    return;
  }
  if (of.kind === "stream") {
    picture.removeAttribute("src");
    picture.alt = "The newest frame of the stream";
    return grow(of);
  }
  if (of.kind === "memory") {
    $("memory").textContent = "A memory of what was seen. The video itself is not needed to ask about it.";
    return showScenes([{ start: 0, end: of.duration }]);
  }
  player.src = `/v1/videos/${of.id}/content`;
  player.setAttribute("aria-label", of.name);
  now = document.createElement("div");
  now.className = "now";
  timeline.append(now);
  loadScenes(of);
}

player.addEventListener("timeupdate", () => {
  if (video && now) now.style.left = `${(100 * player.currentTime) / video.duration}%`;
});
