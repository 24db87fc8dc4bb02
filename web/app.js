// The demo page: types or streams text, plays what comes back, shows what the lanes did.

import { VoxlaneClient } from "./voxlane/client.js";
import { Player } from "./voxlane/player.js";
import { WIRE_RATE } from "./voxlane/wire.js";

const RECONNECT_MS = [500, 1000, 2000, 4000, 8000];
const CHUNKS_SHOWN = 200;
const PIXELS_PER_SECOND = 60;

const $ = (id) => document.getElementById(id);
const player = new Player();
let client;
let context = null;
let streaming = null; // timer of word-by-word text
let startedAt = 0;
let firstPacketSeen = false;
let attempts = 0;

connect();
player.addEventListener("state", ({ detail }) => showPlayer(detail));
player.addEventListener("audible", ({ detail }) => show("first-sound", `${Math.round(detail.at - startedAt)} ms`));

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  speak();
});
$("interrupt").addEventListener("click", interrupt);
$("pause").addEventListener("click", () => {
  const paused = $("pause").getAttribute("aria-pressed") !== "true";
  $("pause").setAttribute("aria-pressed", String(paused));
  player.pause(paused);
});

async function connect() {
  client = new VoxlaneClient();
  client.addEventListener("packet", ({ detail }) => onPacket(detail));
  client.addEventListener("chunk", ({ detail }) => showChunk(detail));
  client.addEventListener("cancelled", ({ detail }) => showHeard(detail.heard));
  client.addEventListener("end", ({ detail }) => onEnd(detail));
  client.addEventListener("error", ({ detail }) => showError(detail.message));
  client.addEventListener("close", ({ detail }) => onClose(detail));
  try {
    const hello = { trace: true, client: "voxlane page", playback: { target_ms: player.targetMs, prebuffer_ms: player.targetMs } };
    const ready = await client.connect({ hello });
    attempts = 0;
    const model = ready.models.find((known) => known.name === ready.default_model) ?? ready.models[0];
    fillVoices(model);
    $("status").textContent = model.name;
    $("speak").disabled = false;
  } catch {
    // `close` has scheduled the next attempt.
  }
}

function onClose({ code, reason }) {
  stopStreaming();
  context = null;
  setSpeaking(false);
  $("speak").disabled = true;
  const delay = RECONNECT_MS[Math.min(attempts, RECONNECT_MS.length - 1)] * (0.5 + Math.random());
  attempts += 1;
  $("status").textContent = `disconnected (${code}${reason ? ` ${reason}` : ""}), trying again`;
  setTimeout(connect, delay);
}

function fillVoices(model) {
  const chosen = $("voice").value || model.default_voice;
  const options = model.voices.map((voice) => {
    const option = new Option(voice.name, voice.id);
    option.selected = voice.id === chosen || voice.name === chosen;
    return option;
  });
  $("voice").replaceChildren(...options);
}

async function speak() {
  const text = $("text").value;
  showError("");
  await player.start();
  if (context && !context.ended) interrupt();
  reset();
  const settings = { voice: $("voice").value, layout: $("stream").checked ? "streamed" : "whole" };
  if ($("seed").value !== "") settings.seed = Number($("seed").value);
  context = client.open(settings);
  context.reportIntervalMs = client.ready.report_interval_ms;
  player.attach(context);
  startedAt = performance.now();
  setSpeaking(true);
  if ($("stream").checked) streamWords(context, text);
  else {
    context.append(text);
    context.end();
  }
}

// As a language model writes: one word, a pause, the next word. Each piece keeps its white space.
function streamWords(target, text) {
  const words = text.match(/\s*\S+\s*/g) ?? [text];
  const interval = 1000 / Math.max(1, Number($("rate").value) || 8);
  let next = 0;
  const step = () => {
    target.append(words[next]);
    next += 1;
    if (next < words.length) return;
    target.end();
    stopStreaming();
  };
  stopStreaming();
  streaming = setInterval(step, interval);
  step();
}

function stopStreaming() {
  clearInterval(streaming);
  streaming = null;
}

function interrupt() {
  if (!context) return;
  stopStreaming();
  const played = player.stop();
  context.cancel(played);
  setSpeaking(false);
}

function onPacket(packet) {
  if (!context || packet.context !== context.id) return;
  if (!firstPacketSeen) {
    firstPacketSeen = true;
    show("first-audio", `${Math.round(performance.now() - startedAt)} ms`);
  }
  player.push(packet);
}

function onEnd(message) {
  if (!context || message.context !== context.id || message.epoch !== context.epoch) return;
  if (message.reason === "failed" || message.samples === 0) setSpeaking(false);
}

function reset() {
  firstPacketSeen = false;
  for (const id of ["first-audio", "first-sound", "buffered", "played", "underruns", "state"]) show(id, "–");
  $("chunks").replaceChildren();
  $("heard-section").hidden = true;
  $("pause").setAttribute("aria-pressed", "false");
}

function setSpeaking(speaking) {
  $("interrupt").disabled = !speaking;
  $("pause").disabled = !speaking;
}

function showPlayer({ state, played, buffered, underruns }) {
  show("state", state);
  show("played", `${(played / WIRE_RATE).toFixed(1)} s`);
  show("buffered", `${Math.round((buffered * 1000) / WIRE_RATE)} ms`);
  show("underruns", String(underruns));
  if (state === "ended") setSpeaking(false);
}

function showChunk({ lane, slack_ms: slack, samples, made_ms: made }) {
  const item = document.createElement("li");
  item.className = lane;
  item.textContent = slack === null ? "∞" : String(Math.round(slack));
  item.style.width = `${Math.max(32, (samples / WIRE_RATE) * PIXELS_PER_SECOND)}px`;
  item.title = `${lane} lane, ${Math.round((samples * 1000) / WIRE_RATE)} ms of sound, made after ${Math.round(made)} ms`;
  $("chunks").append(item);
  if ($("chunks").childElementCount > CHUNKS_SHOWN) $("chunks").firstElementChild.remove();
}

function showHeard(heard) {
  $("heard").textContent = heard.text || "nothing";
  $("heard-section").hidden = false;
}

function showError(text) {
  $("error").textContent = text;
  $("error").hidden = text === "";
}

function show(id, text) {
  $(id).textContent = text;
}

// What the browser tests read.
globalThis.voxlane = { get client() { return client; }, player, get context() { return context; } };
