// Conversations, kept in this browser: a list per video, each with what was asked and answered.

const name = "kinora-talks";

function all() {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? [];
  } catch {
    return [];
  }
}

function keep(talks) {
  try {
    localStorage.setItem(name, JSON.stringify(talks.slice(0, 200)));
  } catch { /* no room: the conversation lasts as long as the page */ }
}

export const about = (video) => all().filter((talk) => talk.video === video);

export function fresh(video) {
  return { id: crypto.randomUUID?.() ?? String(Date.now()), video, title: "", messages: [] };
}

export function save(talk) {
  talk.title ||= talk.messages[0]?.content.slice(0, 60) ?? "";
  keep([talk, ...all().filter((other) => other.id !== talk.id)]);
}

export function forget(video) {
  keep(all().filter((talk) => talk.video !== video));
}
