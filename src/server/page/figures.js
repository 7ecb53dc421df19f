// The panel of figures: the last answer's, and the server's own while it is open.
import { text } from "./api.js";

const button = document.getElementById("figures-button");
const panel = document.getElementById("figures");
const set = (name, value) => { document.getElementById(`figure-${name}`).textContent = value; };

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; ++unit; }
  return `${count.toFixed(count < 10 && unit > 0 ? 1 : 0)} ${units[unit]}`;
}

export function answered(report, usage) {
  const seconds = report.timings.first_token;
  set("first", seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`);
  const rate = report.timings.generate > 0 ? usage.completion_tokens / report.timings.generate : 0;
  set("speed", `${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`);
  const share = usage.prompt_tokens > 0 ? usage.prompt_tokens_details.cached_tokens / usage.prompt_tokens : 0;
  set("cached", `${Math.round(100 * share)} %`);
}

async function look() {
  if (panel.hidden) return;
  try {
    const metrics = await text("/metrics");
    const value = (label) => Number(metrics.split("\n").find((line) => line.startsWith(`${label} `))?.split(" ").pop() ?? 0);
    set("device", bytes(value('kinora_kv_bytes{tier="device"}')));
    set("host", bytes(value('kinora_kv_bytes{tier="host"}')));
    set("disk", bytes(value('kinora_kv_bytes{tier="disk"}')));
    set("queue", String(value("kinora_queue_waiting")));
  } catch { /* the next look may succeed */ }
}

button.addEventListener("click", () => {
  panel.hidden = !panel.hidden;
  button.setAttribute("aria-expanded", String(!panel.hidden));
  look();
});
setInterval(look, 2000);
