// The page of `vattention serve`: a chat, and a map of the tokens that attention read.
// Texts are inserted as text nodes only.

import { addReport, clearReports, formatPercent, redraw, summarize } from "./map.js";

const find = (id) => document.getElementById(id);
const messages = find("messages");

/** Messages of the conversation, and the abort controller of the running answer. */
const chat = { history: [], running: null };

// Requests.

async function request(path, options = {}) {
  const key = find("key").value.trim();
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers });
  if (!response.ok) throw new Error(describeFailure(response.status, await response.text()));
  return response;
}

function describeFailure(status, body) {
  try {
    return `${status}: ${JSON.parse(body).error.message}`;
  } catch {
    return `${status}: ${body || "the server sent no message"}`;
  }
}

/** Yields the events of a stream as objects, until the server ends it with `[DONE]`. */
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection ended before the answer was complete");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((line) => line.startsWith("data:"))) {
      const data = line.slice("data:".length).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

async function loadModels() {
  try {
    const list = await (await request("/v1/models")).json();
    const chosen = find("model").value;
    find("model").replaceChildren(...list.data.map(({ id }) => new Option(id, id)));
    if (list.data.some(({ id }) => id === chosen)) find("model").value = chosen;
    showError(null);
  } catch (error) {
    showError(error);
  }
}

/** Returns the body of a request; fields that are empty keep the server's defaults. */
function makeBody(history) {
  const body = {
    model: find("model").value,
    messages: history,
    stream: true,
    stream_options: { include_usage: true },
    vattention: { reports: true },
  };
  for (const field of ["temperature", "max_completion_tokens", "seed"]) {
    if (find(field).value !== "") body[field] = Number(find(field).value);
  }
  if (find("ignore_eos").checked) body.ignore_eos = true;
  return JSON.stringify(body);
}

// The chat.

function appendElement(parent, tag, className, text = "") {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  parent.append(element);
  return element;
}

/** Adds a message to the page, and returns its parts. */
function appendMessage(role, text, note = "") {
  find("hint").hidden = true;
  const item = appendElement(messages, "article", `message ${role}`);
  appendElement(item, "h2", "", role === "user" ? "You" : find("model").value);
  const parts = { item, text: appendElement(item, "p", "text", text), arrived: "" };
  parts.note = appendElement(item, "p", "note", note);
  messages.scrollTop = messages.scrollHeight;
  return parts;
}

/** Shows the text so far, and keeps its end in view unless the user has scrolled up. */
function showText(answer) {
  if (answer.arrived === "") return;
  const below = messages.scrollHeight - messages.scrollTop - messages.clientHeight;
  answer.text.append(answer.arrived);
  answer.arrived = "";
  if (below < 40) messages.scrollTop = messages.scrollHeight;
}

function showError(error) {
  find("error").hidden = error === null;
  find("error").textContent = error === null ? "" : error.message;
}

function setRunning(controller) {
  chat.running = controller;
  find("send").hidden = controller !== null;
  find("stop").hidden = controller === null;
  const begun = controller !== null || chat.history.length > 0;
  find("document").disabled = find("file").disabled = begun;
  messages.setAttribute("aria-busy", controller !== null);
}

async function ask(question) {
  const attached = chat.history.length === 0 ? find("document").value.trim() : "";
  const content = attached ? `${attached}\n\n${question}` : question;
  const history = [...chat.history, { role: "user", content }];
  const note = attached ? `with a document of ${attached.length.toLocaleString()} characters` : "";
  const controller = new AbortController();
  const asked = appendMessage("user", question, note);
  const answer = appendMessage("assistant", "");
  answer.item.classList.add("writing");
  find("attachment").open = false;
  showError(null);
  setRunning(controller);
  let failure = null;
  try {
    await readAnswer(makeBody(history), controller.signal, answer);
  } catch (error) {
    failure = error;
  }
  // The answer belongs to an earlier chat if its controller is no longer the current one.
  if (chat.running !== controller) return;
  answer.item.classList.remove("writing");
  if (failure && !controller.signal.aborted) showError(failure);
  if (failure && answer.text.textContent === "") {
    takeBack(question, asked, answer);
  } else {
    if (failure) answer.note.textContent = controller.signal.aborted ? "stopped" : "incomplete";
    chat.history = [...history, { role: "assistant", content: answer.text.textContent }];
  }
  setRunning(null);
}

/** Moves a question without an answer from the conversation back into its field. */
function takeBack(question, asked, answer) {
  asked.item.remove();
  answer.item.remove();
  find("hint").hidden = messages.querySelector(".message") !== null;
  if (find("question").value === "") find("question").value = question;
}

async function readAnswer(body, signal, answer) {
  const timing = { begin: performance.now(), first: null, last: null, tokens: 0, usage: null };
  clearReports();
  // Tokens can arrive faster than the page is laid out: they are shown once per frame.
  const show = () => {
    showText(answer);
    showTiles(timing);
    frame = requestAnimationFrame(show);
  };
  let frame = requestAnimationFrame(show);
  try {
    const response = await request("/v1/chat/completions", { method: "POST", body, signal });
    for await (const event of readEvents(response)) readEvent(event, timing, answer);
  } finally {
    timing.end = performance.now();
    cancelAnimationFrame(frame);
    showText(answer);
    showTiles(timing);
  }
}

function readEvent(event, timing, answer) {
  if (event.usage) timing.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice) return;
  answer.arrived += choice.delta?.content ?? "";
  if (choice.finish_reason === "length") answer.note.textContent = "ended at the maximum of tokens";
  if (choice.delta?.content || event.vattention) {
    timing.last = performance.now();
    timing.first ??= timing.last;
    timing.tokens += 1;
  }
  if (event.vattention) addReport(event.vattention);
}

// Numbers beside the map.

function showTiles(timing) {
  const tokens = timing.usage?.completion_tokens ?? timing.tokens;
  const seconds = (timing.last - timing.first) / 1000;
  const speed = tokens > 1 && seconds > 0 ? ((tokens - 1) / seconds).toFixed(1) : "–";
  const whole = timing.usage?.vattention;
  const steps = summarize();
  setText("speed", speed);
  showShare("read", whole?.read ?? steps.read);
  showShare("held", whole?.held ?? steps.held);
  showFacts(timing);
}

function showShare(id, share) {
  setText(id, share === null ? "–" : formatPercent(share));
}

function setText(id, text) {
  if (find(id).textContent !== text) find(id).textContent = text;
}

/** Shows the progress of an answer, and its usage at the end. */
function showFacts({ begin, first, end, usage, tokens }) {
  const waited = (((first ?? end ?? performance.now()) - begin) / 1000).toFixed(1);
  const facts = [];
  if (first !== null) facts.push(`first token after ${waited} s`);
  else facts.push(end === undefined ? `reading the prompt, ${waited} s` : "no token");
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    const kept = cached ? ` (${cached.toLocaleString()} cached)` : "";
    facts.push(`prompt ${usage.prompt_tokens.toLocaleString()}${kept}`);
  }
  facts.push(`answer ${usage?.completion_tokens ?? tokens}`);
  const bar = usage?.vattention?.largest_bar;
  if (typeof bar === "number") facts.push(`largest error bar ${bar.toFixed(3)}`);
  setText("facts", facts.join(" · "));
}

// User actions.

function submit() {
  const question = find("question").value.trim();
  if (question === "" || chat.running) return;
  find("question").value = "";
  find("question").focus();
  ask(question);
}

function startChat() {
  chat.running?.abort();
  chat.history = [];
  messages.querySelectorAll(".message").forEach((message) => message.remove());
  find("hint").hidden = false;
  showError(null);
  setRunning(null);
  find("question").focus();
}

function showSize() {
  const length = find("document").value.length;
  find("size").textContent = length ? `· ${length.toLocaleString()} characters` : "";
}

find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
find("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") chat.running?.abort();
});
find("stop").addEventListener("click", () => {
  chat.running?.abort();
  find("question").focus();
});
find("reset").addEventListener("click", startChat);
find("document").addEventListener("input", showSize);
find("file").addEventListener("change", async ({ target }) => {
  if (target.files.length === 0) return;
  find("document").value = await target.files[0].text();
  showSize();
});
find("key").addEventListener("change", ({ target }) => {
  sessionStorage.setItem("vattention.key", target.value);
  loadModels();
});
find("steps").addEventListener("input", redraw);
document.querySelectorAll("input[name=shown]").forEach((kind) => {
  kind.addEventListener("change", redraw);
});
find("key").value = sessionStorage.getItem("vattention.key") ?? "";
loadModels();
