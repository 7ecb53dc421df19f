// The player and the timeline under it.
import { get } from "./api.js";

const player = document.getElementById("player");
const picture = document.getElementById("picture");
const timeline = document.getElementById("timeline");

export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  return hours > 0 ? `${hours}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}` : `${Math.floor(whole / 60)}:${two(whole % 60)}`;
}

export const still = (id, time, side) => `/v1/videos/${id}/picture?time=${time.toFixed(2)}&side=${side}`;

let video = null;
let now = null;

function place(element, start, end) {
  element.style.left = `${(100 * start) / video.duration}%`;
  element.style.width = `${(100 * Math.max(0, end - start)) / video.duration}%`;
}

export function seek(time) {
  if (!video || video.kind !== "video") return;
  player.currentTime = time;
  player.focus({ preventScroll: true });
  player.scrollIntoView({ block: "nearest" });
}

// Marks what an answer looked at.
export function mark(spans) {
  timeline.querySelectorAll(".seen").forEach((one) => one.remove());
  if (!video || video.kind !== "video") return;
  for (const span of spans) {
    const seen = document.createElement("div");
    seen.className = "seen";
    place(seen, span.start, Math.min(video.duration, span.end));
    timeline.append(seen);
  }
}

async function showScenes(of) {
  let scenes = [];
  try {
    scenes = (await get(`/v1/videos/${of.id}/scenes`)).data;
  } catch { /* a timeline without scenes is one scene */ }
  if (video !== of) return;
  if (scenes.length === 0) scenes = [{ start: 0, end: of.duration }];
  timeline.querySelectorAll("button").forEach((one) => one.remove());
  scenes.forEach((scene, i) => {
    const button = document.createElement("button");
    const name = `Scene ${i + 1}, ${clock(scene.start)} to ${clock(scene.end)}`;
    button.title = name;
    button.setAttribute("aria-label", name);
    button.addEventListener("click", () => seek(scene.start));
    place(button, scene.start, scene.end);
    timeline.prepend(button);
  });
  // In the order of time, for those who tab through them.
  [...timeline.querySelectorAll("button")].reverse().forEach((button) => timeline.append(button));
  timeline.append(now, ...timeline.querySelectorAll(".seen"));
}

export function show(of) {
  video = of;
  const moving = of.kind === "video";
  player.hidden = timeline.hidden = !moving;
  picture.hidden = moving;
  timeline.replaceChildren();
  if (!moving) {
    player.removeAttribute("src");
    picture.src = `/v1/videos/${of.id}/content`;
    return;
  }
  player.src = `/v1/videos/${of.id}/content`;
  player.setAttribute("aria-label", of.name);
  now = document.createElement("div");
  now.className = "now";
  timeline.append(now);
  showScenes(of);
}

player.addEventListener("timeupdate", () => {
  if (video && now) now.style.left = `${(100 * player.currentTime) / video.duration}%`;
});
