// The page: videos on the left, the conversation on the right.
import * as api from "./api.js";
import * as figures from "./figures.js";
import * as library from "./library.js";
import * as stage from "./stage.js";
import * as talks from "./talks.js";

const $ = (id) => document.getElementById(id);
const ideas = ["What happens in this video?", "When does something change?", "Which colours can be seen?"];

let videos = [];
let video = null;  // that is shown
let talk = null;   // that is going on
let asking = null; // an AbortController while an answer is made

function problem(error) {
  if (error instanceof api.KeyNeeded) return askForKey();
  $("problem").textContent = error.message;
  $("problem").hidden = false;
  $("problem").scrollIntoView({ block: "nearest" });
}
const calm = () => { $("problem").hidden = true; };

function askForKey() {
  $("key-dialog").showModal();
}
$("key-form").addEventListener("submit", () => {
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `kinora_key=${encodeURIComponent($("key").value)}; SameSite=Strict; Path=/${secure}`;
  $("key").value = "";
  start();
});

function progress(words, share) {
  const shown = !$("progress").hidden;
  $("progress").hidden = words === null;
  if (words === null) return;
  if (!shown) $("progress").scrollIntoView({ block: "nearest" });
  $("progress-text").textContent = words;
  if (share === null) $("progress-bar").removeAttribute("value");
  else $("progress-bar").value = share;
}

const stages = {
  open: "Opening",
  index: "Looking through the file",
  decode: "Watching",
  vision: "Watching",
  prefill: "Watching",
};
const reading = ["decode", "vision", "prefill"];  // at the same time, each behind the one before

async function readAhead(of) {
  const shares = {};
  for await (const { event, data } of api.events(`/v1/videos/${of.id}/index`, {})) {
    if (event !== "progress") continue;
    const share = data.total > 0 ? data.done / data.total : null;
    shares[data.stage] = share ?? 0;
    const all = reading.reduce((sum, stage) => sum + (shares[stage] ?? 0), 0) / reading.length;
    progress(stages[data.stage] ?? data.stage, reading.includes(data.stage) ? all : share);
  }
}

async function add(file) {
  calm();
  try {
    progress(`Uploading ${file.name}`, 0);
    const added = await api.upload(file, (share) => progress(`Uploading ${file.name}`, share));
    await listVideos();
    open(added);
    progress(stages.open, null);
    if (added.kind === "video") await readAhead(added);
  } catch (error) {
    problem(error);
  } finally {
    progress(null);
  }
}

function card(one) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.className = "open";
  if (video?.id === one.id) button.setAttribute("aria-current", "true");
  const pictured = one.kind === "video" || one.kind === "image";
  const image = document.createElement(pictured ? "img" : "span");
  if (pictured) {
    image.loading = "lazy";
    image.alt = "";
    image.src = stage.still(one.id, one.duration / 3, 320);
  } else {
    image.className = `sign ${one.kind}`;
    image.setAttribute("aria-hidden", "true");
  }
  const name = document.createElement("span");
  name.className = "name";
  name.textContent = one.name;
  const length = document.createElement("span");
  length.className = "length";
  length.textContent = one.kind === "image" ? "picture" : [stage.clock(one.duration), one.detail].filter(Boolean).join(" · ");
  button.append(image, name, length);
  button.addEventListener("click", () => open(one));
  const remove = document.createElement("button");
  remove.className = "delete";
  remove.textContent = "×";
  remove.setAttribute("aria-label", `Delete ${one.name}`);
  remove.addEventListener("click", () => removeVideo(one));
  item.append(button, remove);
  return item;
}

async function listVideos() {
  videos = await library.list();
  $("library").hidden = videos.length === 0;
  $("videos").replaceChildren(...videos.map(card));
}

async function removeVideo(of) {
  if (!confirm(`Delete ${of.name} and what was said about it?`)) return;
  of.leaves = true;
  try {
    await library.remove(of);
    talks.forget(of.id);
    if (video?.id === of.id) close();
    await listVideos();
  } catch (error) {
    problem(error);
  }
}

function close() {
  video = talk = null;
  localStorage.removeItem("kinora-video");
  $("stage").hidden = true;
  $("drop").hidden = false;
  showTalk();
}

function describe(of) {
  const size = of.width ? `${of.width} × ${of.height}` : "";
  const length = of.kind === "image" ? "" : stage.clock(of.duration);
  $("about").textContent = [of.name, length, size, of.detail, of.error].filter(Boolean).join(" · ");
  $("remember").hidden = of.kind !== "video" && !(of.kind === "stream" && of.frames > 0);
  $("halt").hidden = of.kind !== "stream";
}

// A stream that is shown goes on.
async function follow() {
  const of = video;
  if (of?.kind !== "stream" || of.leaves || document.hidden) return;
  if (of.state === "ended" || of.state === "failed") return;
  try {
    const later = await library.look(of.id);
    if (video !== of) return;
    video = later;
    describe(later);
    stage.grow(later);
  } catch { /* the next look may succeed */ }
}
setInterval(follow, 1000);

async function watch(url) {
  calm();
  try {
    progress("Waiting for the stream", null);
    const started = await library.watch(url);
    $("address").value = "";
    await listVideos();
    open(started);
  } catch (error) {
    problem(error);
  } finally {
    progress(null);
  }
}

async function remember() {
  const of = video;
  calm();
  try {
    progress("Saving what was seen", null);
    await library.remember(of);
    await listVideos();
  } catch (error) {
    problem(error);
  } finally {
    progress(null);
  }
}

function open(of) {
  if (asking) asking.abort();
  calm();
  video = of;
  localStorage.setItem("kinora-video", of.id);
  $("drop").hidden = true;
  $("stage").hidden = false;
  stage.show(of);
  describe(of);
  document.querySelectorAll("#videos .open").forEach((button, i) => {
    if (videos[i]?.id === of.id) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  });
  talk = talks.about(of.id)[0] ?? talks.fresh(of.id);
  showTalk();
  if (matchMedia("(min-width: 56.01rem)").matches) $("question").focus();
}

function listTalks() {
  const kept = video ? talks.about(video.id) : [];
  $("talks").hidden = kept.length < 2 && kept[0]?.id === talk?.id;
  $("new-talk").hidden = !talk || talk.messages.length === 0;
  const listed = kept.some((one) => one.id === talk?.id) || !talk ? kept : [talk, ...kept];
  $("talks").replaceChildren(...listed.map((one) => {
    const option = document.createElement("option");
    option.value = one.id;
    option.textContent = one.title || "New conversation";
    option.selected = one.id === talk?.id;
    return option;
  }));
  if (listed.length < 2) $("talks").hidden = true;
}

function showEvidence(element, spans) {
  if (!spans?.length || !video || video.kind === "image") return;
  const of = video;
  const list = document.createElement("div");
  list.className = "evidence";
  list.setAttribute("role", "group");
  list.setAttribute("aria-label", "Times that this answer rests on");
  for (const span of spans) {
    const button = document.createElement("button");
    button.dataset.start = span.start;
    if (of.kind === "video") {
      const image = document.createElement("img");
      image.loading = "lazy";
      image.alt = "";
      image.src = stage.still(of.id, (span.start + span.end) / 2, 240);
      button.append(image);
      button.setAttribute("aria-label", `Play from ${stage.clock(span.start)}`);
    }
    const time = document.createElement("span");
    time.textContent = `${stage.clock(span.start)} – ${stage.clock(span.end)}`;
    button.append(time);
    button.addEventListener("click", () => stage.seek(span.start));
    list.append(button);
  }
  element.append(list);
}

function addMessage(message) {
  const element = document.createElement("div");
  element.className = `message ${message.role}`;
  const text = document.createElement("div");
  text.className = "text";
  text.textContent = message.content;
  element.append(text);
  $("messages").append(element);
  if (message.role === "assistant") showEvidence(element, message.evidence);
  $("messages").scrollTop = $("messages").scrollHeight;
  return element;
}

function showTalk() {
  $("messages").replaceChildren($("welcome") ?? "");
  const welcome = $("welcome");
  if (welcome) welcome.hidden = Boolean(talk?.messages.length);
  $("ideas").replaceChildren(...ideas.map((idea) => {
    const button = document.createElement("button");
    button.className = "plain";
    button.type = "button";
    button.textContent = idea;
    button.disabled = !video;
    button.addEventListener("click", () => ask(idea));
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
  for (const message of talk?.messages ?? []) addMessage(message);
  const last = talk?.messages.findLast((message) => message.role === "assistant");
  stage.mark(last?.evidence ?? []);
  listTalks();
}

// What the server is sent: the video stands in the first question.
function request() {
  const messages = talk.messages.map(({ role, content }, i) => ({
    role,
    content: i > 0 ? content : [
      { type: video.kind === "image" ? "image_url" : "video_url", uuid: video.id },
      { type: "text", text: content },
    ],
  }));
  return { messages, stream: true, stream_options: { include_usage: true } };
}

async function ask(question) {
  if (!video || asking || !question.trim()) return;
  calm();
  const of = talk;
  of.messages.push({ role: "user", content: question.trim() });
  $("welcome").hidden = true;
  addMessage(of.messages.at(-1));
  const answer = { role: "assistant", content: "" };
  const element = addMessage(answer);
  const step = document.createElement("p");
  step.className = "step";
  element.append(step);
  asking = new AbortController();
  $("messages").setAttribute("aria-busy", "true");
  $("send").hidden = true;
  $("stop").hidden = false;
  try {
    for await (const { comment, data } of api.events("/v1/chat/completions", request(), asking.signal)) {
      if (comment !== undefined) {
        const [word] = comment.split(" ");
        step.textContent = stages[word] ?? comment;
        continue;
      }
      const choice = data.choices[0];
      if (choice?.delta?.content) {
        step.remove();
        answer.content += choice.delta.content;
        element.firstChild.textContent = answer.content;
        $("messages").scrollTop = $("messages").scrollHeight;
      }
      if (choice?.evidence) answer.evidence = choice.evidence;
      if (data.usage) figures.answered(data.kinora, data.usage);
    }
    step.remove();
    of.messages.push(answer);
    talks.save(of);
    if (talk === of) {
      showEvidence(element, answer.evidence);
      stage.mark(answer.evidence ?? []);
      listTalks();
    }
  } catch (error) {
    step.remove();
    of.messages.pop();
    element.classList.add("failed");
    const stopped = error.name === "AbortError";
    element.firstChild.textContent = stopped ? "Stopped." : error.message;
    if (error instanceof api.KeyNeeded) askForKey();
    $("question").value = question;
  } finally {
    asking = null;
    $("messages").setAttribute("aria-busy", "false");
    $("send").hidden = false;
    $("stop").hidden = true;
    $("messages").scrollTop = $("messages").scrollHeight;
  }
}

function fit() {
  const field = $("question");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("question").value;
  if (!video) return problem(new Error("Choose a video first."));
  $("question").value = "";
  fit();
  ask(question);
});
$("question").addEventListener("input", fit);
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
$("stop").addEventListener("click", () => asking?.abort());
$("watch-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const address = $("address").value.trim();
  if (address) watch(address);
});
$("remember").addEventListener("click", remember);
$("halt").addEventListener("click", () => removeVideo(video));
$("new-talk").addEventListener("click", () => {
  talk = talks.fresh(video.id);
  showTalk();
  $("question").focus();
});
$("talks").addEventListener("change", () => {
  talk = talks.about(video.id).find((one) => one.id === $("talks").value) ?? talk;
  showTalk();
});
for (const input of [$("file"), $("file-more")]) {
  input.addEventListener("change", () => {
    if (input.files.length) add(input.files[0]);
    input.value = "";
  });
}
addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dragging"); });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dragging");
  if (event.dataTransfer.files.length) add(event.dataTransfer.files[0]);
});

async function start() {
  try {
    $("model").textContent = (await api.get("/v1/models")).data[0].id;
    await listVideos();
    const last = videos.find((one) => one.id === localStorage.getItem("kinora-video")) ?? videos[0];
    if (last) open(last);
    else showTalk();
  } catch (error) {
    problem(error);
  }
}
start();
